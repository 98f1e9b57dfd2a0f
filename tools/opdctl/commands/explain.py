"""`opdctl explain`: what a key of the experiment file is, takes and does by default."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import note

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

    width = shutil.get_terminal_size((200, 24)).columns  # a pipe gets uncut lines
    if word is None:
        print("\n".join(keys.overview(width=width)))
        note("`opdctl explain` with a key, a section or any word says more")
        return
    for line in keys.explain(word, width=width):
        print(line)
