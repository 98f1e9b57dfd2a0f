"""`opdctl explain`: what a key of the experiment file is, takes and does by default."""

from __future__ import annotations

from typing import Annotated

import typer

Word = Annotated[
    str | None,
    typer.Argument(metavar="[KEY|SECTION|WORD]", help="A key, a section, a variable, or a word of a description."),
]


def explain(word: Word = None) -> None:
    """Explain a key of the experiment file: type, default, rules, the original's variable, an example.

    Examples: `opdctl explain opd.loss_type` · `opdctl explain cluster.gpu` · `opdctl explain learning`
    """
    import shutil

    from opdctl.chart import explain as keys

    if word is None:
        print("\n".join(keys.sections()))
        return
    # A pipe gets uncut lines.
    for line in keys.explain(word, width=shutil.get_terminal_size((200, 24)).columns):
        print(line)
