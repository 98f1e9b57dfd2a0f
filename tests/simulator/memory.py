"""Pure functions whose answers are kept: the same paths, manifests and retry rules come in every schedule.

Each gives what it would compute anew. Nothing of it sees the world, so schedules and their traces are as without.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

# Names of temporary files never come again; what was kept is dropped before it weighs anything.
MOST_KEPT = 50_000

remembering = functools.lru_cache(MOST_KEPT)


def text_of(path: Any) -> str:
    """`os.fspath` without two calls of Python for a path that was asked before."""
    try:
        return path._str
    except AttributeError:
        return str(path)


def _of_path(call: Callable[[pathlib.Path], Any]) -> Callable[[pathlib.Path], Any]:
    """The same function of a path; paths are immutable, so that equal ones may be one."""
    kept: dict[str, Any] = {}

    def remembered(path: pathlib.Path) -> Any:
        try:
            key = path._str
        except AttributeError:
            key = str(path)
        answer = kept.get(key)
        if answer is None:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            answer = kept[key] = call(path)
        return answer

    return remembered


def _of_two(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of a path and of one more path or text."""
    kept: dict[tuple[str, str], Any] = {}

    def remembered(path: pathlib.Path, other: Any) -> Any:
        try:
            text = path._str
        except AttributeError:
            text = str(path)
        key = (text, other if type(other) is str else text_of(other))
        answer = kept.get(key)
        if answer is None:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            answer = kept[key] = call(path, other)
        return answer

    return remembered


def install() -> None:
    """Once, after the code under test is imported."""
    from opd.runs import manifest
    from opd.store import base

    flavour = getattr(pathlib.PosixPath, "_flavour", None)
    if hasattr(flavour, "parse_parts"):  # Python 3.11; later ones parse a path when it is first asked for
        parse_parts = flavour.parse_parts
        parse = remembering(lambda *parts: parse_parts(parts))
        flavour.parse_parts = lambda parts: parse(*parts)
    path = pathlib.Path
    path.parent = property(_of_path(path.parent.fget))  # type: ignore[assignment,attr-defined,misc]
    path.parents = property(_of_path(lambda path, parents=path.parents: tuple(parents.fget(path))))  # type: ignore[assignment,misc]
    path.__truediv__ = _of_two(path.__truediv__)  # type: ignore[method-assign]
    path.relative_to = _of_two(path.relative_to)  # type: ignore[method-assign]
    # By its fields: a manifest is frozen all through.
    record = manifest.Manifest
    for name in ("to_bytes", "seal", "from_bytes"):
        setattr(record, name, remembering(getattr(record, name)))
    for name in ("wait_exponential", "retry_if_exception_type", "stop_after_delay"):
        setattr(base, name, remembering(getattr(base, name)))
