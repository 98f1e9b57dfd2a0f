"""Comparison of runs: groups over seeds, pairs, and differences against hand-computed ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from opd.evaluation.results import evaluate
from opdctl.runs.compare import Group, compare_evaluations, compare_metric, difference_text
from opdctl.runs.record import RunRecord


def record(name: str, *, seed: int = 1, lr: float = 1e-6, **latest: float) -> RunRecord:
    spec = {"kind": "opd", "name": name, "seed": seed, "actor": {"learning_rate": lr}}
    return RunRecord(run_id=name, url=name, state="succeeded", latest=latest, spec=spec)


def group(values: list[float]) -> Group:
    return Group(name="g", records=tuple(record(f"r{seed}", seed=seed, m=value) for seed, value in enumerate(values)))


def test_a_metric_is_paired_by_seed() -> None:
    found = compare_metric("m", group([1.0, 2.0, 3.0]), group([2.0, 4.0, 6.0]))
    assert found is not None
    # Differences 1, 2, 3: mean 2, deviation 1, error 1 / sqrt(3).
    assert found.difference == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert (found.num_pairs, found.paired_by) == (3, "seed")


@pytest.mark.parametrize(
    ("before", "after", "is_starred"),
    [([1.0, 1.1, 0.9], [3.0, 3.05, 2.95], True), ([1.0], [3.0], False), ([2.5, 2.5, 2.5], [2.5, 2.5, 2.5], False)],
)
def test_a_star_marks_a_clear_difference_and_neither_single_runs_nor_an_exact_zero(
    before: list[float], after: list[float], is_starred: bool
) -> None:
    found = compare_metric("m", group(before), group(after))
    assert found is not None
    assert difference_text(found).endswith("*") == is_starred


def test_three_seeds_without_a_difference_are_starred_in_one_case_of_twenty() -> None:
    random = np.random.default_rng(1)
    stars = 0
    for _ in range(2000):
        found = compare_metric("m", *(group(side) for side in random.normal(size=(2, 3)).tolist()))
        assert found is not None
        stars += found.is_notable
    assert stars / 2000 < 0.07


def test_evaluations_are_paired_by_problem_and_say_what_they_leave_out(answers: Callable) -> None:
    runs = [
        {"math": evaluate(answers("r", accuracies), num_samples=2)[0]}
        for accuracies in ({0: [0, 0], 1: [1, 0], 2: [1, 1]}, {0: [1, 0], 1: [1, 1], 3: [1, 1]})
    ]
    found, _ = compare_evaluations(runs[:1], runs[1:])
    assert (found.quantity, found.difference, found.num_pairs) == ("math mean@n", (0.5, 0.0), 2)
    assert found.remark.startswith("2 problems")
