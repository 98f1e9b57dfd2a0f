"""`opdctl explain`: the keys of the experiment file, from its schema."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.errors import usage_error

if TYPE_CHECKING:
    from opd.config.keys import Key

Word = Annotated[
    str | None, typer.Argument(metavar="[KEY|SECTION|WORD]", help="A key, a section, or a word of a description.")
]


def explain(word: Word = None) -> None:
    """Explain keys of the experiment file: type, default, meaning, the kinds and the original's variable.

    Examples: `opdctl explain opd.loss_type` · `opdctl explain cluster.gpu` · `opdctl explain learning`
    """
    width = shutil.get_terminal_size((200, 24)).columns
    for line in explained(word, width=width):
        print(line)


def explained(word: str | None, *, width: int) -> Iterable[str]:
    """Return the lines about a key, about the keys of a section, or about the keys that a word is found in.

    Raises:
        ToolError: nothing has this name.
    """
    import difflib

    kinds_of, keys = _keys()
    if word is None:
        sections = dict.fromkeys(path.partition(".")[0] for path in sorted(keys))
        return [
            f"{name}: {', '.join(p for p in keys if p.startswith(f'{name}.')) or keys[name].says}" for name in sections
        ]
    path = word.strip().strip(".").partition("=")[0]
    found = [keys[path]] if path in keys else [key for key in keys.values() if key.path.startswith(f"{path}.")]
    found = found or [
        key for key in keys.values() if path and path.lower() in f"{key.path} {key.says} {_variables(key)}".lower()
    ]
    if not found:
        near = difflib.get_close_matches(path, keys, 1)
        fix = f"did you mean {near[0]}?" if near else "`opdctl explain` lists all keys"
        raise usage_error(f"no key, section or description has {word!r}", fix=fix)
    lines = []
    for key in found:
        facts = [key.takes, f"default {key.default}" if key.default else key.needed, _variables(key)]
        kinds = kinds_of[key.path]
        facts.append("" if path.startswith("cluster") or len(found) > 1 else f"kinds {', '.join(kinds)}")
        lines.append(f"{key.path}  {'; '.join(filter(None, facts))}")
        lines += textwrap.wrap(key.says, max(width, 40), initial_indent="    ", subsequent_indent="    ")
    return lines


def _keys() -> tuple[dict[str, list[str]], dict[str, Key]]:
    """Return the kinds that have each key, and each key as the first of them has it."""
    from opd.config import FILE_KINDS
    from opd.config.keys import cluster_keys, spec_keys

    kinds: dict[str, list[str]] = {}
    keys: dict[str, Key] = {}
    for kind in sorted(FILE_KINDS, key=lambda kind: kind != "opd"):
        for path, key in spec_keys(kind).items():
            keys.setdefault(path, key)
            kinds.setdefault(path, []).append(kind)
    keys |= cluster_keys()
    return kinds | {path: [] for path in keys if path not in kinds}, keys


def _variables(key: Key) -> str:
    from opd.config import VARIABLES

    return ", ".join(item.name for item in VARIABLES if item.path == key.path)
