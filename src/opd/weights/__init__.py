"""Weights of tokens, problems and steps: the choice of trained tokens (TIP), pass rates and stages (PACED)."""

from opd.weights.problems import register_problem_weight
from opd.weights.tokens import register_token_score

__all__ = ["register_problem_weight", "register_token_score"]
