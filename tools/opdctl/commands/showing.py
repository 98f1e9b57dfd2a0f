"""How a command shows what it found: for people or for programs, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from opdctl.console import deadline, note, stdout

WATCH_S = 10.0
Found = TypeVar("Found")


class Format(StrEnum):
    """How a run is written."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="What to write.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again every ten seconds, until Ctrl-C.")]


def write_tree(tree: Mapping[str, Any], *, is_yaml: bool) -> None:
    """A tree of plain values for programs: without secrets, and infinite numbers as texts."""
    from opdctl.redact import redact_tree
    from opdctl.runs.export import finite

    shown = finite(redact_tree(tree))
    if is_yaml:
        import yaml

        print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), end="", flush=True)
        return
    import json

    print(json.dumps(shown, indent=1, ensure_ascii=False), flush=True)


def look_and_show(
    look: Callable[[], Found], show: Callable[[Found], None], *, is_watching: bool, timeout_s: float
) -> None:
    """Looks and shows, with `is_watching` again and again on a cleared screen: also through a cluster or store that is away.

    Args:
        timeout_s: of one look.

    Raises:
        CommandTimeout: the first look took longer; what `look` raises, of the first look too.
    """
    from opd.errors import StoreUnavailable
    from opdctl.kube.errors import ClusterUnreachable

    with deadline(timeout_s):
        found = look()
    show(found)
    while is_watching:
        time.sleep(WATCH_S)
        try:
            with deadline(timeout_s):
                found = look()
        except (ClusterUnreachable, StoreUnavailable) as error:
            note(f"looking again: {error}")
            continue
        if (console := stdout()).is_interactive:
            console.clear()
        show(found)
