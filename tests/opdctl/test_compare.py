"""Comparison of a metric: pairs of seeds, errors and stars; test_loaded.py compares whole runs."""

import math

import pytest

from opdctl.runs.compare import Group, compare_metric
from opdctl.runs.record import RunRecord


def group(values: list[float]) -> Group:
    return Group(name="g", records=tuple(
        RunRecord(run_id=f"r{seed}", url="u", state="succeeded", latest={"m": value}, spec={"seed": seed})
        for seed, value in enumerate(values)
    ))  # fmt: skip


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
    assert found.is_notable == is_starred
