"""`opdctl keys`: the keys of an experiment file, by section, by word or all."""

from typing import Annotated

import typer

from opd.experiment import SPEC_CLASSES, VARIABLES
from opd.experiment.cluster import Cluster
from opd.experiment.errors import nearest
from opd.experiment.keys import keys_of
from opdctl.console import usage_error

Word = Annotated[str, typer.Argument(metavar="WORD", help="A key, a section, or a word in their texts; else all.")]


def keys(word: Word = "") -> None:
    """Explain the keys of an experiment file: type, default, variable, meaning.

    Examples: `opdctl keys opd.loss_type` · `opdctl keys learning`
    """
    by_kind = {kind: keys_of(cls) for kind, cls in SPEC_CLASSES.items()}
    found = {path: key for keys in by_kind.values() for path, key in keys.items()} | keys_of(Cluster, "cluster.")
    variables = {item.path: item.name for item in VARIABLES}
    texts = {path: f"{path} {key.says} {variables.get(path, '')}".lower() for path, key in found.items()}
    wanted = [path for path in found if path == word or path.startswith(f"{word}.")]
    wanted = wanted or [path for path, text in texts.items() if word.lower() in text]
    if not wanted:
        near = nearest(word, list(found))
        fix = f"did you mean {near}?" if near else "`opdctl keys` lists all keys"
        raise usage_error(f"no key, section or description has {word!r}", fix=fix)
    for path in wanted:
        key = found[path]
        facts = [key.facts, variables.get(path, "")]
        kinds = [kind for kind, keys in by_kind.items() if path in keys]
        facts += [f"kinds {', '.join(kinds)}"] if path == word and kinds else []
        print(f"{path}  {'; '.join(filter(None, facts))}\n    {key.says}")
