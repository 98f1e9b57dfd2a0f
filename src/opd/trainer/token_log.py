"""A training step's tokens kept for people to look at: which steps and rollouts, their text, and the file."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import LossType
from opd.rollout.rows import Row
from opd.runs.run import Run
from opd.text import shortened, storable
from opd.update.token_view import RowView, Seen, seen_by_all
from opd.weights.tokens import scored_divergence

MAX_TOKENS = 1024
"""Kept tokens of a response; later tokens are only counted."""
MAX_PROMPT_CHARS = 8000
SIGNIFICANT_DIGITS = 4
# A tokenizer's answer to bytes that are no character yet.
_UNFINISHED = "\ufffd"


class TokenLog:
    """The rollouts that a step keeps, written to the run's folder."""

    def __init__(self, spec: OpdSpec | OpdAgentSpec, run: Run) -> None:
        self._spec, self._run = spec, run
        self._shown: dict[int, Row] = {}
        self._lengths: list[int] = []

    def choose(self, step: int, last_step: int, rows: Sequence[Row]) -> tuple[int, ...]:
        """Return the `row_id`s that the workers are to report token by token, of the step that `keep` writes.

        These are the first rows of as many prompts as the run keeps rollouts, in the first, the last and each saved step.
        """
        every = self._spec.trainer.save_freq
        first: dict[int, Row] = {}
        self._lengths = [len(row.response) for row in rows]
        if step in (1, last_step) or (every > 0 and step % every == 0):
            for row in sorted(rows, key=lambda row: row.order):
                first.setdefault(row.order.index, row)
        self._shown = {row.order.row_id: row for row in list(first.values())[: self._spec.opd.num_kept_rollouts]}
        return tuple(self._shown)

    def keep(self, step: int, *, read: Callable[[], Sequence[Seen]], loss_type: LossType, tokenizer: Any) -> None:
        """Write the rows that were chosen, if any were; `read` asks every rank, `loss_type` is the stage's."""
        if not self._shown:
            return
        seen, selection = seen_by_all(read()), self._spec.opd.importance.tokens
        tokens = {
            "step": step,
            "score": selection.score,
            "ratio": selection.ratio,
            "divergence": scored_divergence(selection.score, loss_type),
            "lengths": self._lengths,
            "rows": [_row(row, seen[number], tokenizer) for number, row in self._shown.items() if number in seen],
        }
        self._run.keep({file_key(step): json.dumps(tokens, ensure_ascii=False).encode()})


def file_key(step: int) -> str:
    """Return the key of a step's file in the run directory."""
    return f"tokens/step-{step:06d}.json"


def pieces(ids: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """Yield the text that each token adds to the text before; a character in several tokens comes with the last of them.

    Tokens are decoded after the word before them, since some tokenizers drop a space at the beginning of a text.
    """
    start = done = 0
    for end in range(1, len(ids) + 1):
        before, text = tokenizer.decode(ids[start:done]), tokenizer.decode(ids[start:end])
        if text.endswith(_UNFINISHED) and end < len(ids):
            yield ""
            continue
        yield text[len(before) :]
        start, done = done, end


def _row(row: Row, view: RowView, tokenizer: Any) -> dict[str, Any]:
    """Return a rollout; its lists have an entry for each of the first tokens of the response, null where nothing is known."""
    response = row.response.tolist()
    kept, entropy, divergence = (
        _by_token(view.trained, values) for values in (view.kept, view.entropy, view.divergence)
    )
    return {
        "data_index": row.order.index,
        "sample": row.order.sample,
        "prompt": shortened(storable(tokenizer.decode(row.prompt.tolist())), MAX_PROMPT_CHARS),
        "score": _written(row.score),
        "num_tokens": len(response),
        "texts": list(map(storable, pieces(response[:MAX_TOKENS], tokenizer))),
        "trained": view.trained[:MAX_TOKENS].tolist(),
        "kept": [bool(value) for value in kept],
        "entropy": list(map(_written, entropy)),
        "divergence": list(map(_written, divergence)),
        "student": _likeliest(view.trained, view.top_student, tokenizer),
        "teacher": _likeliest(view.trained, view.top_teacher, tokenizer),
    }


def _by_token(trained: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values of trained tokens at their places among the first tokens of the response, 0 or nan elsewhere."""
    out = np.full((len(trained), *values.shape[1:]), np.nan if values.dtype.kind == "f" else False, values.dtype)
    out[trained] = values
    return out[:MAX_TOKENS]


def _likeliest(trained: np.ndarray, top: np.ndarray, tokenizer: Any) -> list[list[tuple[str, float | None]]]:
    """Return the texts of a model's most likely tokens with their probabilities, by token."""
    text = cache(lambda token: storable(tokenizer.decode([token])))
    return [[(text(int(token)), _written(p)) for token, p in one if p == p] for one in _by_token(trained, top)]


def _written(value: float) -> float | None:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if np.isfinite(value) else None
