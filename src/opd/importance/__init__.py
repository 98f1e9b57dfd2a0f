"""Which tokens of a rollout are trained on (TIP), and how much each problem counts (PACED); torch and numpy only."""

from opd.importance.metrics import selection_metrics
from opd.importance.problems import competence_weights, hard_filter, moment_matched
from opd.importance.tokens import choose_tokens, select_tokens, soft_or_scores, token_scores

__all__ = [
    "choose_tokens",
    "competence_weights",
    "hard_filter",
    "moment_matched",
    "select_tokens",
    "selection_metrics",
    "soft_or_scores",
    "token_scores",
]
