"""What a run must leave as it was: processes, mounts, cgroups, network interfaces and kernel settings of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.cluster import host

import gotools

_NETWORK = "net"  # of the network's settings all: what a cluster leaves there is hard to foresee
_VOLATILE = ("net/netfilter/nf_conntrack_count",)

Machine = dict[str, list[str]]


def look() -> Machine:
    """The machine now: kind -> sorted lines."""
    return {
        "processes": _processes(),
        "mounts": sorted(line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": [str(path) for path in host.pod_cgroups()],
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "settings": _settings(),
    }


def differences(before: Machine, after: Machine) -> list[str]:
    """One line for each thing that is there before or after alone."""
    lines = []
    for kind in before:
        lines += [f"{kind}: gone: {line}" for line in sorted(set(before[kind]) - set(after[kind]))]
        lines += [f"{kind}: new: {line}" for line in sorted(set(after[kind]) - set(before[kind]))]
    return lines


def _processes() -> list[str]:
    """The cluster's programs in its own mount namespace, and whatever runs in pods.

    Others' come and go meanwhile and say nothing, a test's helm or etcd from the same cache among them.
    """
    ours, mine, found = str(gotools.cache_dir()), os.readlink("/proc/self/ns/mnt"), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            program, groups = os.readlink(path / "exe"), (path / "cgroup").read_text()
            is_elsewhere = os.readlink(path / "ns/mnt") != mine
        except OSError:  # ended meanwhile, or a kernel thread
            continue
        if (is_elsewhere and program.startswith(ours)) or host.POD_CGROUP in groups:
            found.append(f"{path.name} {program}")
    return sorted(found)


def _settings() -> list[str]:
    """What a cluster is known to change, and all that can be set of the network."""
    root, names = Path("/proc/sys"), list(host.SYSCTLS)
    for folder, _, files in os.walk(root / _NETWORK):
        names += [str(Path(folder, name).relative_to(root)) for name in files]
    found = set()
    for name in names:
        try:
            if name not in _VOLATILE and (root / name).stat().st_mode & 0o200:
                found.add(f"{name} = {(root / name).read_text().strip()}")
        except OSError:  # gone with its interface, or write-only
            continue
    return sorted(found)
