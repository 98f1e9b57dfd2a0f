"""The page of a run's kept tokens, coloured by entropy, divergence or choice: all text escaped, no script."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment

from opd.agent.viewer import pick
from opd.runs.tokens import FOLDER, StepTokens, TokenRow, from_bytes
from opd.store.base import Store
from opd.text import storable

NUM_STEPS = 4
"""Steps that a page shows: the first and the newest."""
LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Nats from which on a token has the next darker colour, for entropy and divergence alike."""
NUM_LARGEST = 8
CONTEXT_CHARS = 32


def load(run: Store) -> list[StepTokens]:
    """Return the steps that a page shows; empty if the run kept none.

    Raises:
        StoreError: the store cannot be read. ValueError: a file is damaged; names it.
    """
    steps = []
    for key in pick([info.key for info in run.list(FOLDER)], NUM_STEPS):
        try:
            steps.append(from_bytes(run.get(key)))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    return steps


def render(title: str, steps: Sequence[StepTokens], environment: Environment) -> str:
    """Return the page as HTML that UTF-8 can hold."""
    environment.filters |= {"nats": nats, "tokens": shown_tokens, "largest": largest}
    return storable(environment.get_template("tokens.html.j2").render(title=title, steps=steps, levels=LEVELS))


def shown_tokens(row: TokenRow) -> list[dict[str, str]]:
    """Return each token for the template: `classes` that colour it, `values` in words, `text`."""
    columns = zip(row.texts, row.trained, row.kept, row.entropy, row.divergence, strict=True)
    shown = []
    for text, trained, kept, entropy, divergence in columns:
        values = f"entropy {nats(entropy)} · divergence {nats(divergence)} · {'in' if kept else 'not in'} the loss"
        classes = f"h{_level(entropy)} d{_level(divergence)}{' k' if kept else ''}"
        shown.append({
            "classes": classes if trained else "x",
            "values": values if trained else "written by template or tool, never in the loss",
            # A line break and a part of a character have no width of their own.
            "text": text.replace("\n", "↵\n") or "▫",
        })  # fmt: skip
    return shown


def largest(row: TokenRow) -> list[dict[str, Any]]:
    """Return the tokens with the largest divergence, with the text before them."""
    known = [i for i, value in enumerate(row.divergence) if value is not None]
    ranked = sorted(known, key=lambda i: (-(row.divergence[i] or 0.0), i))[:NUM_LARGEST]
    return [
        {
            "place": i + 1,
            "before": "".join(row.texts[max(i - CONTEXT_CHARS, 0) : i])[-CONTEXT_CHARS:],
            "text": row.texts[i],
            "entropy": row.entropy[i],
            "divergence": row.divergence[i],
            "kept": row.kept[i],
        }
        for i in ranked
    ]


def nats(value: float | None) -> str:
    """Return `0.32 nats`, or `not computed`."""
    return "not computed" if value is None else f"{value:.3g} nats"


def _level(value: float | None) -> str:
    return "-" if value is None else str(bisect_right(LEVELS, value))
