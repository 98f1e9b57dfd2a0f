"""The cluster's own mounts and network, made from inside its fresh namespaces: nothing of them shows outside."""

from pathlib import Path

from tests.processes import output

NODE_IP = "10.50.0.1"
_GATEWAY = "10.50.0.254"  # no machine is there: parts only want a default route to exist


def isolate_mounts(folder: Path) -> None:
    """Empty /run and put /var into the cluster's folder, so that no part writes to the machine's own."""
    output("mount", "--make-rprivate", "/")
    output("mount", "-t", "tmpfs", "tmpfs", "/run")
    Path("/run/lock").mkdir()
    var = folder / "var"
    for name in ("lib", "log", "tmp", "cache"):
        (var / name).mkdir(parents=True)
    (var / "tmp").chmod(0o1777)
    (var / "run").symlink_to("/run")
    output("mount", "--bind", str(var), "/var")


def isolate_network() -> None:
    """Loopback, the node's address on a bridge (every kernel has that device), a default route, forwarding."""
    output("ip", "link", "set", "lo", "up")
    output("ip", "link", "add", "node0", "type", "bridge")
    output("ip", "addr", "add", f"{NODE_IP}/24", "dev", "node0")
    output("ip", "link", "set", "node0", "up")
    output("ip", "route", "add", "default", "via", _GATEWAY, "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def legacy_iptables(folder: Path) -> Path:
    """A folder for PATH in which `iptables` is the legacy one, without a change to the machine's alternatives."""
    folder.mkdir()
    for name in ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"):
        (folder / name).symlink_to("/usr/sbin/xtables-legacy-multi")
    return folder
