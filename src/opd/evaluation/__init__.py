"""Evaluation: from sampled answers to mean@n, pass@k and maj@k with standard errors, a table, a picture and a file."""

from opd.evaluation.estimators import Estimate, clustered, majority_at_every_k, paired_difference, pass_at_every_k
from opd.evaluation.results import SetResult, as_metrics, evaluate
from opd.evaluation.samples import Sample, read_generations, write_generations

__all__ = [
    "Estimate",
    "Sample",
    "SetResult",
    "as_metrics",
    "clustered",
    "evaluate",
    "majority_at_every_k",
    "paired_difference",
    "pass_at_every_k",
    "read_generations",
    "write_generations",
]
