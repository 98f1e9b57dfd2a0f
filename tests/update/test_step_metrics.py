"""The step's metrics are sums divided once."""

import math
from types import SimpleNamespace

import pytest
import torch

from opd.losses import Output
from opd.update.step_metrics import answer_metrics, micro_batch_counts, over_sequence, reduce, skipped

SOUND = {
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
}
NO_UPDATE = [1.0, math.inf, math.nan]


@pytest.mark.parametrize(
    ("changed", "mode", "expected"),
    [
        # The original means the micro-batch means 2/1, 3/3 and 5/6 (defect 5): 1.28 instead of 1.0.
        ({}, "token-mean", {"loss": 1.0, "entropy": 0.5, "num_tokens": 10, "batch_size": 4, "nonfinite_tokens": 5}),
        ({}, "token-mean", {"divergence_max": 3.0, "grad_norm": 2.0, "skipped": 0, "num_updates": 2}),
        ({}, "seq-mean-token-sum", {"loss": 2.5}),
        ({"grad_norm": NO_UPDATE}, "token-mean", {"skipped": 2, "skipped_step": 2, "grad_norm": 1.0}),
        # The rate of the updates, and the rate that the schedule has set since.
        ({"lr": [2e-6], "lr_used": [[1e-6], [1e-6]]}, "token-mean", {"lr_used": 1e-6, "lr": 2e-6}),
        ({"sum/loss": [[math.inf, -math.inf]]}, "token-mean", {"loss": math.nan}),
        ({"sum/loss": [[-math.inf, math.nan]]}, "token-mean", {"loss": math.nan}),
        ({"sum/loss": [[1e308, 1e308]]}, "token-mean", {"loss": math.inf}),
        ({"max/divergence": [[math.nan, 3.0]]}, "token-mean", {"divergence_max": math.nan}),
        ({"max/divergence": [[3.0, math.nan]]}, "token-mean", {"divergence_max": math.nan}),
    ],
)
def test_sums_of_all_micro_batches_are_divided_once(changed, mode, expected):
    metrics = reduce(SOUND | changed, loss_agg_mode=mode)
    assert {name: metrics[f"opd/{name}"] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_updates_skipped_in_a_row_are_those_after_the_last_good_one():
    norms = {(1.0, math.nan): 1, (math.nan, 1.0): 0, (math.nan, 1.0, math.inf, math.nan): 2, (math.nan,) * 3: 3}
    assert {key: skipped({"grad_norm": list(key)}) for key in norms} == {key: (len(key), n) for key, n in norms.items()}


def test_a_step_on_given_answers_has_its_mean_loss_and_the_metrics_of_its_updates():
    of_ranks = {"perf/gb": [1.0, 4.0], "timing/step_s": [3.0, 2.0], "mfu": [0.25, 0.75]}
    updates = {"actor/num_updates": 2, "actor/skipped": 0, "actor/grad_norm": 2.0}
    means = {"actor/loss": 1.0, "actor/num_tokens": 10, "perf/mfu/actor": 0.5}
    assert answer_metrics(SOUND | of_ranks) == means | updates | {"actor/perf/gb": 4.0, "timing/step_s": 3.0}


def test_no_counts_at_all_is_an_error():
    with pytest.raises(ValueError, match="no counts"):
        reduce({"grad_norm": [1.0]})


def test_before_the_first_update_a_micro_batch_compares_the_probabilities_of_rollout_and_actor():
    zeros, log_prob = torch.zeros(3), torch.tensor([0.25, 0.5, 1.0]).log()
    found = dict.fromkeys(("divergence", "entropy", "teacher_entropy"), zeros) | {"log_prob": log_prob}
    output = Output(torch.zeros(()), found | {"nonfinite": torch.tensor([True, False, True])})
    task = SimpleNamespace(positions=torch.arange(3), own=None, references=())
    mask = torch.tensor([[1, 0, 1, 1]])  # the second token is a tool's
    rollout = torch.tensor([[0.5, 1.0, 0.25, 1.0]]).log()
    rows = {"loss_mask": mask, "response_mask": mask, "rollout_log_probs": rollout}
    later = micro_batch_counts(rows, task, output, first_update=False)
    assert later["sum/nonfinite"] == 2.0
    assert "sum/p_diff" not in later
    counts = micro_batch_counts(rows, task, output, first_update=True)
    moments = {"tokens": 3, "x": 1.75, "y": 1.75, "xx": 1.3125, "yy": 1.3125, "xy": 1.25, "diff": 0.5}
    assert {name: counts[f"sum/p_{name}"] for name in moments} == pytest.approx(moments, rel=1e-6)
    assert counts["max/p_diff"] == pytest.approx(0.25)


def test_agreement_is_the_pearson_correlation_of_all_tokens_of_all_ranks():
    x, y = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64)
    sums = {"tokens": 3.0, "diff": 0.3, "x": x.sum(), "y": y.sum(), "xx": x @ x, "yy": y @ y, "xy": x @ y}
    moments = {f"sum/p_{name}": [float(value)] for name, value in sums.items()} | {"max/p_diff": [0.2]}
    metrics = reduce(SOUND | moments)
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
    extremes = {
        "teacher_entropy": (0.2, 5.0),
        "teacher_entropy_std": (0.0, 0.4),
        "teacher_prefers_neighbour": (0.1, 0.9),
        "weight_change": (0.0, 0.1),
    }
    found = {name: value for name, value in reduce(SOUND | flat).items() if "/rank_" in name}
    assert found == pytest.approx(
        {
            f"opd/{name}/rank_{which}": value
            for name, pair in extremes.items()
            for which, value in zip(("min", "max"), pair, strict=True)
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
