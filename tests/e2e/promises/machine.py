"""What the whole run promises to the machine that it ran on."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.machine import differences
from tests.e2e.promises.common import Look, tree

_KILLED_PARTS = ("kubelet", "ray-operator")


def _as_it_was(folder: Path) -> tuple[bool, str]:
    before, after = tree(folder, "before.json"), tree(folder, "after.json")
    found = differences(before, after)
    looked_at = ", ".join(f"{len(lines)} {kind}" for kind, lines in before.items())
    return not found, f"{looked_at}: " + ("; ".join(found)[:300] if found else "the same")


def _only_those_killed(folder: Path) -> tuple[bool, str]:
    """The scenarios kill two parts, each once; one that crashes by itself would hide behind its restart."""
    seen = [one["part"] for one in tree(folder, "restarts.json")]
    return len(seen) == len(set(seen)) and set(seen) <= set(_KILLED_PARTS), ", ".join(seen) or "none"


PROMISES: dict[str, Look] = {
    "no part of the cluster ended but those that a scenario killed": _only_those_killed,
    "processes, mounts, cgroups, interfaces and kernel settings are as before": _as_it_was,
}
