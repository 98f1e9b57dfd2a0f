"""`opdctl explain`: the keys of the experiment file, from its schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated

import typer

from opdctl.console import usage_error

Word = Annotated[str | None, typer.Argument(metavar="[WORD]", help="A key, a section, or a word of a description.")]


def explain(word: Word = None) -> None:
    """Explain keys of the experiment file: type, default, meaning, the kinds and the original's variable.

    Examples: `opdctl explain opd.loss_type` · `opdctl explain cluster.gpu` · `opdctl explain learning`
    """
    for line in explained(word or ""):
        print(line)


def explained(word: str) -> Iterator[str]:
    """Yield the lines about a key, a section, or the keys that a word is found in; without a word about every key.

    Raises:
        ToolError: nothing has this name.
    """
    from opd.experiment import FILE_KINDS, VARIABLES
    from opd.experiment.keys import cluster_keys, spec_keys

    by_kind = {kind: spec_keys(kind) for kind in FILE_KINDS}
    found = {path: key for keys in by_kind.values() for path, key in keys.items()} | cluster_keys()
    variables = {item.path: item.name for item in VARIABLES}
    texts = {path: f"{path} {key.says} {variables.get(path, '')}".lower() for path, key in found.items()}
    wanted = [path for path in found if path == word or path.startswith(f"{word}.")]
    wanted = wanted or [path for path, text in texts.items() if word.lower() in text]
    if not wanted:
        near = difflib.get_close_matches(word, found, 1)
        fix = f"did you mean {near[0]}?" if near else "`opdctl explain` lists all keys"
        raise usage_error(f"no key, section or description has {word!r}", fix=fix)
    for path in wanted:
        key = found[path]
        facts = [key.takes, f"default {key.default}" if key.default else key.needed, variables.get(path, "")]
        kinds = [kind for kind, keys in by_kind.items() if path in keys]
        facts += [f"kinds {', '.join(kinds)}"] if path == word and kinds else []
        yield f"{path}  {'; '.join(filter(None, facts))}"
        yield f"    {key.says}"
