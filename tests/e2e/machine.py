"""What a run must leave as it was: processes, mounts, cgroups, network interfaces and kernel settings of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import gotools

# They change by themselves, or are answers rather than settings.
_VOLATILE = (
    "kernel/ns_last_pid",
    "kernel/pty/nr",
    "kernel/random/",
    "net/netfilter/nf_conntrack_count",
    "net/core/dev_weight",
    "vm/stat_refresh",
)
_SETTINGS = ("kernel", "net", "vm")

Machine = dict[str, list[str]]


def look() -> Machine:
    """The machine now: kind -> sorted lines."""
    return {
        "processes": _processes(),
        "mounts": sorted(line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/") if path.is_dir()),
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
    """Programs of the cluster's own, and whatever lives in other mount namespaces: all that a cluster can leave behind.

    Others' processes come and go meanwhile and say nothing.
    """
    ours, mine, found = str(gotools.cache_dir()), os.readlink("/proc/self/ns/mnt"), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            program, namespace = os.readlink(path / "exe"), os.readlink(path / "ns/mnt")
        except OSError:  # ended meanwhile, or a kernel thread
            continue
        if program.startswith(ours) or namespace != mine:
            found.append(f"{path.name} {program}")
    return sorted(found)


def _settings() -> list[str]:
    root, found = Path("/proc/sys"), []
    for top in _SETTINGS:
        for folder, _, names in os.walk(root / top):
            for name in names:
                path = Path(folder) / name
                key = str(path.relative_to(root))
                if not key.startswith(_VOLATILE) and path.stat().st_mode & 0o200:
                    try:
                        found.append(f"{key} = {path.read_text().strip()}")
                    except OSError:  # write-only
                        continue
    return sorted(found)
