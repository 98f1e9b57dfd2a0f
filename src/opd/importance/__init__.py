"""Which tokens are trained on (TIP), how much each problem counts and which stage a step has (PACED); torch and numpy only."""

from opd.importance.problems import competence_weights, hard_filter, moment_matched
from opd.importance.stages import Schedule
from opd.importance.tokens import (
    choose_tokens,
    scored_divergence,
    select_tokens,
    selection_metrics,
    soft_or_scores,
    token_scores,
)

__all__ = [
    "Schedule",
    "choose_tokens",
    "competence_weights",
    "hard_filter",
    "moment_matched",
    "scored_divergence",
    "select_tokens",
    "selection_metrics",
    "soft_or_scores",
    "token_scores",
]
