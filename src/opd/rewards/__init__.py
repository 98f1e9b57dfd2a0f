"""Rewards: what an answer scores, and the killable pool in which untrusted scorers run; imports neither verl nor ray."""

from opd.rewards.dispatch import check_function, compute_score_async, is_unread, row_of_returned, worst_score
from opd.rewards.scorers import BUILTIN_FUNCTIONS, NO_ANSWER_PREDICTIONS, Score

__all__ = [
    "BUILTIN_FUNCTIONS", "NO_ANSWER_PREDICTIONS", "Score", "check_function", "compute_score_async", "is_unread",
    "row_of_returned", "worst_score",
]  # fmt: skip
