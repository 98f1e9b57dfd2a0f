"""How tokens are chosen: the names that a spec uses, and what each score needs to be known."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Score = Literal["none", "random", "position", "entropy", "entropy_length", "divergence", "soft_or", "q3"]
Mode = Literal["topk", "bottomk", "sample"]
Scope = Literal["rollout", "batch"]
Position = Literal["first", "last"]
Normalize = Literal["global", "micro"]

NEED_ENTROPY: tuple[Score, ...] = ("entropy", "entropy_length", "soft_or", "q3")
NEED_DIVERGENCE: tuple[Score, ...] = ("divergence", "soft_or", "q3")


@dataclass(frozen=True, kw_only=True)
class TokenSelection:
    """A rule that keeps a share of the tokens; see README.md of this folder for the scores.

    Attributes:
        normalize: what is scored and chosen among: all tokens of a step, after a pass of the student of its own, or those
            of one micro-batch, inside of its forward.
        ratio: share kept of a rollout's trained tokens, or with scope `batch` of all of them; rounded down.
        position: which end of a rollout scores highest, for `position` and `entropy_length`.
        entropy_clip_q, divergence_clip_q: quantile at which a quantity is cut off before it is scaled to [0, 1] for
            `soft_or` and `q3`; None: not cut off.
    """

    score: Score = "none"
    ratio: float = 0.5
    mode: Mode = "topk"
    scope: Scope = "rollout"
    position: Position = "first"
    normalize: Normalize = "global"
    entropy_clip_q: float | None = 0.98
    divergence_clip_q: float | None = None

    def __post_init__(self) -> None:
        if self.normalize == "micro" and self.scope == "batch" and self.needs_student:
            raise ValueError(
                "scope='batch' with normalize='micro': how many tokens an update trains would depend on how it is cut; use "
                "scope='rollout', or normalize='global'"
            )

    @property
    def in_head(self) -> bool:
        """Whether the choice is made within each micro-batch, by the student's head."""
        return self.normalize == "micro" and self.needs_student

    @property
    def needs_student(self) -> bool:
        """Whether the student must have read the tokens before any is chosen."""
        return self.score in NEED_ENTROPY or self.needs_teacher

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher must have read them too."""
        return self.score in NEED_DIVERGENCE


def num_kept(ratio: float, num_tokens: int) -> int:
    """floor(ratio * num_tokens) for the ratio as it was written: 0.29 of 100 is 29, which floats would make 28.

    Raises:
        ValueError: the ratio is not between 0 and 1.
    """
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio={ratio!r}: must lie between 0 and 1; it is the share of the tokens that is kept")
    return int(Fraction(str(ratio)) * num_tokens)
