"""Tokens of a training step that a run keeps for people: a few rollouts and a density (torch-free)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from opd.experiment.base import Section
from opd.experiment.types import Natural

FOLDER = "tokens"
"""Folder of the run directory with one JSON file for each kept step."""
EDGES = tuple(10 ** (k / 6) for k in range(-36, 7))
"""Nats between the density's bins, for entropy and divergence: six a decade from 1e-6 to 10; the outer bins are open."""
NUM_BINS = len(EDGES) + 1
MAX_TOKENS = 1024
"""Kept tokens of a response; later tokens are only counted."""

Bin = Annotated[int, Field(ge=0, lt=NUM_BINS)]


class TokenRow(Section):
    """One training rollout; its lists have an entry for each of the first tokens of the response."""

    data_index: int
    sample: Natural
    prompt: str
    score: float | None
    """None means not finite."""
    num_tokens: Natural
    """Tokens of the whole response."""
    texts: tuple[str, ...]
    """Parts of the response; the last token of a character has its text, the others are empty."""
    trained: tuple[bool, ...]
    """False for tokens of tools and the template, which are never in the loss."""
    kept: tuple[bool, ...]
    """In the loss."""
    entropy: tuple[float | None, ...]
    """The student's entropy in nats; None means not computed, or not finite."""
    divergence: tuple[float | None, ...]
    """Divergence of student and teacher in nats; None as above."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in ("texts", "trained", "kept", "entropy", "divergence")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"lists of different length: {lengths}")
        return self


class StepTokens(Section):
    """Tokens of one step."""

    step: Natural
    score: str
    """The score that chose tokens, `opd.importance.tokens.score`; `none`: all are in the loss."""
    ratio: float
    divergence: str
    """The measured divergence: `reverse_kl`, `forward_kl` or `jsd`."""
    covers_all: bool
    """True if `density` counts all trained tokens; else entropy or divergence is known only in the loss."""
    density: tuple[tuple[Bin, Bin, Natural, Natural], ...]
    """(bin of the entropy, bin of the divergence, tokens there, tokens of these in the loss), without empty bins."""
    rows: tuple[TokenRow, ...]


def file_key(step: int) -> str:
    """Return the key of a step's file in the run directory."""
    return f"{FOLDER}/step-{step:06d}.json"


def to_bytes(tokens: StepTokens) -> bytes:
    """Return the file's content."""
    return tokens.model_dump_json().encode()


def from_bytes(content: bytes) -> StepTokens:
    """Read a step's tokens; raise ValueError with the reason for any other content."""
    try:
        return StepTokens.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
