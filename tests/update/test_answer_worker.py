"""The worker of supervised fine-tuning: cross-entropy and its gradient in float64, however a batch is cut."""

from __future__ import annotations

import pytest
from tests.update.exact import check_answers, cut, in_ways, of_answers, run
from tests.update.models import uneven_rows
from tests.update.workers import Case

ROWS = uneven_rows()
SOME_WAYS = [(1, "padded"), (1, "8 micro-batches"), (1, "token budget"), (2, "all"), (2, "shared sequence")]
UNEVEN = (1, "measured by more rows than divide them")


@pytest.fixture(scope="module")
def case(pair) -> Case:
    return Case(student=pair["student"], teacher=pair["student"], rows=ROWS, method="answers")


@pytest.fixture(scope="module")
def runs(case) -> dict:
    return run(in_ways(case, *SOME_WAYS) | {UNEVEN: cut(case, sets=["actor.log_prob_micro_batch_size_per_gpu=3"])})


@pytest.fixture(scope="module")
def reference(case) -> dict:
    return of_answers(case)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*SOME_WAYS, UNEVEN], ids=str)
def test_loss_and_gradient_are_those_of_transformers_in_float64_however_the_batch_is_cut(reference, runs, way):
    found = runs[way]
    check_answers(found, reference)
    assert found["measured"] == pytest.approx(reference["metrics"]["opd/loss"], rel=1e-6)
    assert found["update"]["actor/num_tokens"] == sum(sum(row["mask"]) for row in ROWS)
    assert (found["update"]["actor/num_updates"], found["update"]["actor/skipped"]) == (1, 0)
    assert not found["has_rollout"]
