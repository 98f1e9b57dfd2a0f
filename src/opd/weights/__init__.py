"""Which tokens are trained on (TIP), how much each problem counts and which stage a step has (PACED); torch and numpy only."""

from opd.weights.problems import (
    competence_weights,
    hard_filter,
    moment_matched,
    register_problem_weight,
    weights_of_problems,
)
from opd.weights.stages import Schedule
from opd.weights.tokens import (
    choose_tokens,
    register_token_score,
    scored_divergence,
    select_tokens,
    selection_metrics,
    soft_or_scores,
)

__all__ = [
    "Schedule",
    "choose_tokens",
    "competence_weights",
    "hard_filter",
    "moment_matched",
    "register_problem_weight",
    "register_token_score",
    "scored_divergence",
    "select_tokens",
    "selection_metrics",
    "soft_or_scores",
    "weights_of_problems",
]
