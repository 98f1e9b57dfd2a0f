"""What a run keeps of a training step's tokens for a person to look at: a few rollouts and a density (torch-free)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from opd.config.base import Natural, Section

FOLDER = "tokens"
"""In the run directory: one JSON file for each step that was kept."""
EDGES = tuple(10 ** (k / 6) for k in range(-36, 7))
"""Nats at which the density's bins meet, for entropy and divergence alike: six a decade from 1e-6 to 10. Bin 0 lies below the
first (rounding can leave a divergence just under 0), the last one above the last."""
NUM_BINS = len(EDGES) + 1
MAX_TOKENS = 1024
"""Of a rollout's response; the tokens behind them are counted and not kept."""

Bin = Annotated[int, Field(ge=0, lt=NUM_BINS)]


class TokenRow(Section):
    """One training rollout; its lists have an entry for each of the first tokens of the response."""

    data_index: int
    sample: Natural
    turn: Natural
    prompt: str
    score: float | None
    """None where it is not finite."""
    num_tokens: Natural
    """Of the whole response."""
    texts: tuple[str, ...]
    """They join to the response; of a character in several tokens the last one has it, the others are empty."""
    trained: tuple[bool, ...]
    """False for what tools and the template wrote: never in the loss."""
    kept: tuple[bool, ...]
    """In the loss."""
    entropy: tuple[float | None, ...]
    """The student's, in nats; None where it was not computed or is not finite."""
    divergence: tuple[float | None, ...]
    """Of student and teacher, in nats; None likewise."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in ("texts", "trained", "kept", "entropy", "divergence")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"lists of different length: {lengths}")
        return self


class StepTokens(Section):
    """One step's tokens."""

    step: Natural
    score: str
    """`opd.importance.tokens.score`, by which tokens were chosen; `none`: all are in the loss."""
    ratio: float
    divergence: str
    """Which divergence was measured: `reverse_kl`, `forward_kl` or `jsd`."""
    covers_all: bool
    """Whether `density` counts all trained tokens; False: entropy or divergence is known of those in the loss only."""
    density: tuple[tuple[Bin, Bin, Natural, Natural], ...]
    """(bin of the entropy, bin of the divergence, tokens there, of which in the loss); bins without a token are left out."""
    rows: tuple[TokenRow, ...]


def file_key(step: int) -> str:
    """Where a step's tokens lie in the run directory."""
    return f"{FOLDER}/step-{step:06d}.json"


def to_bytes(tokens: StepTokens) -> bytes:
    """The file's content."""
    return tokens.model_dump_json().encode()


def from_bytes(content: bytes) -> StepTokens:
    """A step's tokens.

    Raises:
        ValueError: the content is none, and why.
    """
    try:
        return StepTokens.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
