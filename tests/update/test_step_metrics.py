"""The step's metrics are sums divided once."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from opd.losses import Output
from opd.update.step_metrics import micro_batch_counts, over_sequence, reduce, skipped


def _raw(**extra):
    return {
        "sum/tokens": [[1.0, 3.0], [6.0]],
        "sum/counted": [[1.0, 3.0], [6.0]],
        "sum/loss": [[2.0, 3.0], [5.0]],
        "sum/divergence": [[1.0, 1.0], [8.0]],
        "sum/student_entropy": [[0.0, 1.0], [4.0]],
        "sum/teacher_entropy": [[0.0, 0.0], [0.0]],
        "sum/rows": [[1.0, 1.0], [2.0]],
        "sum/nonfinite": [[1.0, 0.0], [4.0]],
        "max/divergence": [[0.5, 3.0], [1.0]],
        "grad_norm": [1.0, 3.0],
        **extra,
    }


def test_losses_are_a_mean_over_tokens_not_a_mean_of_micro_batch_means():
    # The original means the micro-batch means 2/1, 3/3 and 5/6 (defect 5): 1.28 instead of 1.0.
    metrics = reduce(_raw())
    assert metrics["opd/loss"] == pytest.approx(10 / 10)
    assert metrics["opd/entropy"] == pytest.approx(5 / 10)
    assert metrics["opd/num_tokens"] == 10
    assert metrics["opd/batch_size"] == 4
    assert metrics["opd/nonfinite_tokens"] == 5
    assert reduce(_raw(), loss_agg_mode="seq-mean-token-sum")["opd/loss"] == pytest.approx(10 / 4)
    assert metrics["opd/divergence_max"] == 3.0
    assert metrics["opd/grad_norm"] == 2.0


def test_skipped_updates_are_counted_by_both_names_and_kept_out_of_the_norm():
    metrics = reduce(_raw(grad_norm=[1.0, math.inf, math.nan]))
    assert metrics["opd/skipped_step"] == metrics["opd/skipped"] == 2
    assert metrics["opd/grad_norm"] == 1.0


def test_updates_skipped_in_a_row_are_those_after_the_last_good_one():
    norms = {(1.0, math.nan): 1, (math.nan, 1.0): 0, (math.nan, 1.0, math.inf, math.nan): 2, (math.nan,) * 3: 3}
    assert {key: skipped(_raw(grad_norm=list(key)))[1] for key in norms} == norms


@pytest.mark.parametrize("values", [[math.inf, -math.inf], [-math.inf, math.nan], [1e308, 1e308]])
def test_sums_that_are_no_number_are_said_so_and_raise_nothing(values):
    assert not math.isfinite(reduce(_raw(**{"sum/loss": [values]}))["opd/loss"])


@pytest.mark.parametrize("values", [[math.nan, 3.0], [3.0, math.nan]])
def test_no_order_hides_a_nan_from_the_largest(values):
    assert math.isnan(reduce(_raw(**{"max/divergence": [values]}))["opd/divergence_max"])


def test_the_rate_of_the_updates_stands_beside_the_one_that_the_schedule_has_set_since():
    metrics = reduce(_raw(lr=[2e-6], lr_used=[[1e-6], [1e-6]]))
    assert (metrics["opd/lr_used"], metrics["opd/lr"]) == (1e-6, 2e-6)


OUTPUT = Output(
    torch.zeros(()),
    {
        **dict.fromkeys(("divergence", "entropy", "teacher_entropy"), torch.zeros(3)),
        "nonfinite": torch.tensor([True, False, True]),
        "log_prob": torch.tensor([0.25, 0.5, 1.0]).log(),
    },
    backend="plain",
)
TASK = SimpleNamespace(positions=torch.arange(3), own=None, references=())


def test_before_the_first_update_a_micro_batch_compares_the_probabilities_of_rollout_and_actor():
    mask = torch.tensor([[1, 0, 1, 1]])  # the second token is a tool's
    rollout = torch.tensor([[0.5, 1.0, 0.25, 1.0]]).log()
    rows = {"loss_mask": mask, "response_mask": mask, "rollout_log_probs": rollout}
    later = micro_batch_counts(rows, TASK, OUTPUT, first_update=False)
    assert later["sum/nonfinite"] == 2.0
    assert "sum/p_diff" not in later
    counts = micro_batch_counts(rows, TASK, OUTPUT, first_update=True)
    found = {name: counts[f"sum/{name}"] for name in ("p_tokens", "p_x", "p_y", "p_xx", "p_yy", "p_xy", "p_diff")}
    assert found == pytest.approx(
        {"p_tokens": 3, "p_x": 1.75, "p_y": 1.75, "p_xx": 1.3125, "p_yy": 1.3125, "p_xy": 1.25, "p_diff": 0.5}, rel=1e-6
    )
    assert counts["max/p_diff"] == pytest.approx(0.25)


def test_no_counts_at_all_is_an_error():
    with pytest.raises(ValueError, match="no counts"):
        reduce({"grad_norm": [1.0]})


def test_agreement_is_the_pearson_correlation_of_all_tokens_of_all_ranks():
    x, y = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64)
    sums = {"tokens": 3.0, "diff": 0.3, "x": x.sum(), "y": y.sum(), "xx": x @ x, "yy": y @ y, "xy": x @ y}
    moments = {f"sum/p_{name}": [float(value)] for name, value in sums.items()} | {"max/p_diff": [0.2]}
    metrics = reduce(_raw(**moments))
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(0.9933992678)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.1)


def test_extremes_show_a_rank_that_sums_hide_and_leave_small_micro_batches_out():
    # Three micro-batches: of a sound rank, of a rank whose teacher is flat, and one of too few tokens.
    flat = {
        "sum/tokens": [[100.0, 100.0], [10.0]],
        "sum/teacher_entropy": [[20.0, 500.0], [90.0]],
        "sum/teacher_entropy_squared": [[20.0, 2500.0], [810.0]],
        "sum/floored": [[0.0, 0.0], [0.0]],
        "sum/neighbours": [[60.0, 60.0]],
        "sum/next_preferred": [[6.0, 54.0]],
        "sum/previous_preferred": [[3.0, 1.0]],
        "sum/weights": [1.0, 4.0],
        "sum/weights_moved": [0.01, 0.0],
    }
    metrics = reduce(_raw(**flat))
    found = {name: value for name, value in metrics.items() if "/rank_" in name}
    assert found == pytest.approx(
        {
            "opd/teacher_entropy/rank_min": 0.2,
            "opd/teacher_entropy/rank_max": 5.0,
            "opd/teacher_entropy_std/rank_min": 0.0,
            "opd/teacher_entropy_std/rank_max": 0.4,
            "opd/teacher_prefers_neighbour/rank_min": 0.1,
            "opd/teacher_prefers_neighbour/rank_max": 0.9,
            "opd/weight_change/rank_min": 0.0,
            "opd/weight_change/rank_max": 0.1,
        }
    )


def test_ranks_that_share_a_sequence_add_their_sums_but_not_their_rows_and_lose_no_nan(monkeypatch):
    mine = {"sum/tokens": [3.0, 1.0], "sum/rows": [2.0, 1.0], "max/divergence": [math.nan, 1.0], "perf/gb": [4.0]}
    other = {"sum/tokens": [5.0, 0.0], "sum/rows": [2.0, 1.0], "max/divergence": [7.0, 2.0], "perf/gb": [1.0]}

    def gathered(found, counts, group):
        found[:] = [other, counts]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    found = over_sequence(mine, group=None)
    first, second = found.pop("max/divergence")
    assert (math.isnan(first), second) == (True, 2.0)
    assert found == {"sum/tokens": [8.0, 1.0], "sum/rows": [2.0, 1.0], "perf/gb": [4.0]}
