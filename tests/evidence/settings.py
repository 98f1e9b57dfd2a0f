"""What all runs of a study share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The defaults are those of the studies of `opd.importance`."""

    num_updates: int = 10
    """Of a cell with two stages; one more stage is half as many more. By a rule set before the studies ran: of 10, 20, 40 the
    first at which `all` has closed 60 % of the gap between start and teacher on seeds 11 and 12, which no study has. There it
    went from 0.29 to 0.82, 0.93 and 0.96; the teacher has 0.94."""
    batch_size: int = 64
    """Answers an update."""
    num_answers: int = 1
    """To each of an update's problems: the groups of GRPO."""
    num_problems: int = 640
    """Of a seed's training set."""
    split: bool = False
    """Train on a drawn half of them; the other half's labels are for the stages of a cell that say so."""
    num_rate_answers: int = 8
    """K of the pass rates."""
    num_heldout: int = 200
    num_heldout_answers: int = 8
    learning_rate: float = 3e-4
    """Of a distillation or SFT. For the bridge 3e-4 and 1e-3 were compared on seeds 11 and 12: 0.76 and 0.66 after ten updates."""
    adam_betas: tuple[float, float] = (0.9, 0.98)
    num_warmup_steps: int = 5
    grad_clip: float = 1.0
    chunk_size: int = 4096
    grpo_learning_rate: float = 3e-4
    """Of 1e-4, 3e-4 and 1e-3 the best for the student on seeds 11 and 12: 0.63, 0.71 and 0.03 after ten updates from 0.27."""
    grpo_clip_ratio: float = 0.2
    """Of one update on each batch, as here, it clips nothing."""
    grpo_kl_coef: float = 5e-4
    """Of the KL to the model that GRPO began with; as the clip, the setting of arXiv 2605.12483."""


def settings_of(study: str, changed: Mapping[str, Any]) -> Settings:
    """A study's settings, with the fields that the caller changed.

    The bridge has eight answers to a problem throughout, and an epoch of each half in ten updates, as its paper has.
    """
    own: dict[str, Any] = {"num_answers": 8, "num_problems": 160, "split": True} if study == "bridge" else {}
    return replace(Settings(), **own | dict(changed))
