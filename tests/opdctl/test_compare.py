"""What a comparison calls notable: by Student's t, so that few seeds raise no false alarm more often than they should."""

from __future__ import annotations

import numpy as np
import pytest

from opdctl.runs.compare import Group, compare_metric
from opdctl.runs.compare_view import difference_text
from opdctl.runs.record import RunRecord


def group(values: list[float], *, first_seed: int = 0) -> Group:
    records = tuple(
        RunRecord(
            run_id=f"r{seed}", url="", kind="opd", spec_hash="", state="succeeded", detail="", num_attempts=1, last_step=1,
            total_steps=1, latest={"m": value}, spec={"seed": seed},
        )
        for seed, value in enumerate(values, start=first_seed)
    )  # fmt: skip
    return Group(name="g", records=records)


@pytest.mark.parametrize("first_seed", [0, 100], ids=["paired", "unpaired"])
def test_three_seeds_without_a_difference_are_starred_in_one_case_of_twenty_and_not_of_five(first_seed: int) -> None:
    random = np.random.default_rng(1)
    stars = 0
    for _ in range(2000):
        before, after = random.normal(size=(2, 3)).tolist()
        found = compare_metric("m", group(before), group(after, first_seed=first_seed))
        assert found is not None
        stars += difference_text(found).endswith("*")
    assert stars / 2000 < 0.07


def test_a_clear_difference_of_three_seeds_is_starred_and_one_of_single_runs_never() -> None:
    clear = compare_metric("m", group([1.0, 1.1, 0.9]), group([3.0, 3.05, 2.95]))
    single = compare_metric("m", group([1.0]), group([3.0]))
    assert clear is not None
    assert single is not None
    assert clear.is_notable
    assert not single.is_notable
