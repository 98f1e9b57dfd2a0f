"""The machine's kernel settings and cgroups, which a cluster changes: recorded before, put back after."""

import os
import time
from pathlib import Path
from typing import Any

_SYS = Path("/proc/sys")
_CGROUPS = Path("/sys/fs/cgroup")
# Written by kubelet and kube-proxy; none of them belongs to a namespace.
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/netfilter/nf_conntrack_max",
)
POD_CGROUP = "kubepods"
# What a command started so mounts and starts ends with it, also by kill -9.
OWN_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def snapshot() -> dict[str, Any]:
    """The settings now. A setting that the kernel does not have is left out."""
    paths = {name: _SYS / name for name in SYSCTLS}
    return {"sysctls": {name: path.read_text().strip() for name, path in paths.items() if path.is_file()}}


def restore(baseline: dict[str, Any]) -> list[str]:
    """Write back what differs from a snapshot and remove the pods' cgroups; returns one line for each change."""
    changes = []
    for name, value in baseline["sysctls"].items():
        path = _SYS / name
        if path.is_file() and path.read_text().strip() != value:
            path.write_text(value)
            changes.append(f"sysctl {name.replace('/', '.')} = {value}")
    for folder in pod_cgroups():
        _remove_cgroup(folder)
        changes.append(f"cgroup {folder}")
    return changes


def pod_cgroups() -> list[Path]:
    """The pods' topmost cgroups, one for each controller."""
    return sorted(path for pattern in (POD_CGROUP, f"*/{POD_CGROUP}") for path in _CGROUPS.glob(pattern))


def _remove_cgroup(top: Path, *, timeout_s: float = 10) -> None:
    """Remove a cgroup with all below it; the kernel lets go of a cgroup shortly after its last process."""
    deadline = time.monotonic() + timeout_s
    for folder, _, _ in os.walk(top, topdown=False):
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
