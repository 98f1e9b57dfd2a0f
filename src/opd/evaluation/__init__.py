"""Evaluation: from sampled answers to mean@n, std@n, pass, best, worst and maj@k with errors, a table, a picture, a file."""

from opd.evaluation.estimators import (
    Estimate,
    best_at_every_k,
    clustered,
    majority_at_every_k,
    paired_difference,
    pass_at_every_k,
)
from opd.evaluation.results import SetResult, as_metrics, evaluate
from opd.evaluation.samples import Sample, read_generations, write_generations

__all__ = [
    "Estimate",
    "Sample",
    "SetResult",
    "as_metrics",
    "best_at_every_k",
    "clustered",
    "evaluate",
    "majority_at_every_k",
    "paired_difference",
    "pass_at_every_k",
    "read_generations",
    "write_generations",
]
