"""Other files and folders that a run reads by a path of its spec: scorers, tool sets, tool lists, the tool database."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opd.config.errors import Problem

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_module(path: str) -> bool:
    """Whether a program of this name may be an importable module."""
    return bool(_MODULE.fullmatch(path)) and not path.endswith((".py", ".yaml", ".json", ".parquet"))


def place_problems(places: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """What is wrong with (key, path); URLs, bundled names and importable modules are left to those who resolve them."""
    for key, path in places:
        if "://" in path or is_module(path) or Path(path).exists():
            continue
        yield Problem(
            path=key,
            value=path,
            rule=f"there is no such file or folder (looked from {Path.cwd()})",
            fix="a path that is there",
        )
