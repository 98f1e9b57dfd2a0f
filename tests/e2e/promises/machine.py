"""What the whole run promises to the machine that it ran on."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.machine import differences
from tests.e2e.promises.common import Look, tree


def _as_it_was(folder: Path) -> tuple[bool, str]:
    before, after = tree(folder, "before.json"), tree(folder, "after.json")
    found = differences(before, after)
    looked_at = ", ".join(f"{len(lines)} {kind}" for kind, lines in before.items())
    return not found, f"{looked_at}: " + ("; ".join(found)[:300] if found else "the same")


PROMISES: dict[str, Look] = {
    "processes, mounts, cgroups, interfaces and kernel settings are as before": _as_it_was,
}
