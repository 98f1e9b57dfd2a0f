"""The promises of runs on chosen tokens, weighted prompts and in stages, read from rows and files as such runs leave them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.gpu_smoke.promises import (
    PEARSON,
    choice_promises,
    promises,
    sft_promises,
    teacher_promises,
    weight_promises,
)
from tests.gpu_smoke.smoke import PASS_RATES, SPECS, write_equal_rates
from tests.remainders import write_remainders

from opd.config import load_spec
from opd.data.toy.task import split_problems
from opd.evaluation.pass_rates import PassRate, read_pass_rates, weights_bytes, weights_key


def broken(**of_last_step: float) -> list[str]:
    """The broken promises of two steps at ratio 0.2, the last with these values."""
    step = {"training/global_step": 1.0, "opd/importance/selected": 0.1992, "opd/importance/divergence_covered": 0.185}
    quadrants = {"opd/importance/q4": 0.195, "opd/importance/q4_selected": 0.0019}
    last = {f"opd/importance/{name}": value for name, value in of_last_step.items()}
    found = choice_promises([step | quadrants, step | quadrants | last, {"val-core/toy/acc/mean@1": 0.5}], 0.2)
    return [promise.name for promise in found if not promise.kept]


def test_tokens_chosen_for_their_entropy_may_hold_less_than_their_share_of_the_divergence():
    assert not broken()


@pytest.mark.parametrize("share", [0.18, 0.21])
def test_a_step_that_chose_another_share_breaks_the_promise(share):
    assert broken(selected=share) == ["0.2 of the tokens chosen"]


def test_a_step_that_chose_tokens_low_in_both_scores_as_often_as_others_breaks_the_promise():
    assert broken(q4_selected=0.19) == ["tokens low in both scores are left out"]


def test_a_step_without_tokens_low_in_both_scores_has_left_them_out():
    assert not broken(q4=0.0, q4_selected=0.0)


def _of_two_teachers(**of_last_step: float) -> list[str]:
    """The broken promises of two steps of two teachers, the last with these values."""
    of = {"large": (0.5, 300.0, 40.0), "mixed": (0.25, 100.0, 20.0)}
    step = {"training/global_step": 1.0, "opd/divergence": 0.4375, "opd/num_tokens": 400.0, "opd/batch_size": 60.0}
    for name, (divergence, tokens, rows) in of.items():
        key = f"opd/teacher/{name}"
        step |= {f"{key}/divergence": divergence, f"{key}/tokens": tokens, f"{key}/rows": rows}
    last = {key.replace("__", "/"): value for key, value in of_last_step.items()}
    return [promise.name for promise in teacher_promises([step, step | last], list(of)) if not promise.kept]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({}, []),
        ({"opd__teacher__mixed__rows": 0.0}, ["rows of large, mixed in every step", "their rows are all of a step's"]),
        ({"opd__batch_size": 61.0}, ["their rows are all of a step's"]),
        ({"opd__divergence": 0.44}, ["their divergences make the whole one"]),
    ],
)
def test_teachers_share_a_steps_rows(last, expected):
    assert _of_two_teachers(**last) == expected


def test_the_smoke_runs_teachers_each_have_prompts(tmp_path):
    table = pq.read_table(write_remainders(tmp_path, seed=1))
    spec = load_spec(str(SPECS["teachers"]), env={}, sets=[], overrides=[]).spec
    read_by = [spec.route.of(value) for value in table[spec.route.by].to_pylist()]
    assert {reader.name for reader in spec.routed} == set(read_by)
    assert len(spec.routed) == 2
    assert min(read_by.count(name) for name in set(read_by)) > 1000


RATES = [0.125, 0.5, 0.875, 1.0]


def _weighted_run(
    folder: Path, *, weights: list[float] | None = None, model: str = "weighted/global_step_4", **of_switch
):
    """The broken promises of a run of two stages of four steps, whose prompts were weighed again before step 5.

    Args:
        weights: measured ones, in the place of the right ones.
        of_switch: metrics of step 5, in the place of those that it has.
    """
    raw = [rate * (1 - rate) for rate in RATES]
    right = [one * len(raw) / sum(raw) for one in raw]
    run_dir = folder / "weighted"
    before, after = (
        [PassRate(str(i), p, 8, name) for i, p in enumerate(rates)]
        for rates, name in (([0.5] * 4, "nobody"), (RATES, model))
    )
    for step, rates, values in ((1, before, [1.0] * 4), (5, after, weights or right)):
        path = run_dir / weights_key(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(weights_bytes(rates, values))
    rows = [
        {
            "training/global_step": float(step),
            "opd/stage": 1.0 + (step > 4),
            "opd/problem_weight_max": 1.0 if step < 5 else max(right),
        }
        for step in range(1, 9)
    ]
    rows[4] |= {"opd/pass_rate_mean": 0.6, "opd/pass_rate_failed_share": 0.0, "opd/pass_rates_used": 1.0} | of_switch
    return [promise.name for promise in weight_promises(rows, run_dir) if not promise.kept]


def test_a_run_that_weighs_its_prompts_again_at_the_switch_keeps_its_promises(tmp_path):
    assert not _weighted_run(tmp_path)


def test_weights_with_another_mean_break_the_promise(tmp_path):
    doubled = [
        2 * rate * (1 - rate) * 4 / 0.46875 for rate in RATES
    ]  # p (1 - p) sums up to 7/64 + 16/64 + 7/64 = 0.46875
    assert _weighted_run(tmp_path, weights=doubled) == ["step-000005.parquet: weights p (1 - p) with a mean of 1"]


def test_weights_of_mean_1_that_are_not_of_the_pass_rates_break_the_promise(tmp_path):
    assert _weighted_run(tmp_path, weights=[0.0, 1.0, 1.0, 2.0]) == [
        "step-000005.parquet: weights p (1 - p) with a mean of 1"
    ]


def test_weights_that_stayed_as_they_were_break_the_promises(tmp_path):
    assert _weighted_run(tmp_path, weights=[1.0] * 4) == [
        "step-000005.parquet: weights p (1 - p) with a mean of 1",
        "the measured weights differ from prompt to prompt",
    ]


def test_rates_of_another_step_break_the_promise(tmp_path):
    assert _weighted_run(tmp_path, model="weighted/global_step_3") == ["they are of the student at the end of stage 1"]


@pytest.mark.parametrize("metrics", [{"opd/pass_rates_used": 0.0}, {"opd/pass_rate_failed_share": 0.01}])
def test_rates_that_do_not_count_or_lack_answers_break_the_promise(tmp_path, metrics):
    assert _weighted_run(tmp_path, **metrics) == ["every answer to them came, and they count"]


def test_weights_that_train_no_step_break_the_promise(tmp_path):
    rows = [
        {"training/global_step": float(step), "opd/stage": 1.0 + (step > 4), "opd/problem_weight_max": 1.0}
        for step in range(1, 9)
    ]
    broken = [promise.name for promise in weight_promises(rows, tmp_path) if not promise.kept]
    assert broken == [
        "pass rates measured at the stage switch, and nowhere else",
        "the weights of each stage are kept",
        "and train the steps of stage 2",
    ]


def _curve(*divergence: float, stages: int = 1, pearson: float = 0.99) -> list[str]:
    """The broken promises of a run with this divergence, whose steps are spread evenly over so many stages."""
    each = len(divergence) // stages
    rows = [
        {
            "training/global_step": number + 1.0, "rollout/failed": 0.0, "reward/failed": 0.0, "opd/skipped_step": 0.0,
            "opd/nonfinite_tokens": 0.0, "opd/divergence": value, PEARSON: pearson,
        }
        | ({"opd/stage": 1.0 + number // each} if stages > 1 else {})
        for number, value in enumerate(divergence)
    ]  # fmt: skip
    found = promises("weighted", "opd", rows, num_steps=len(divergence))
    return [promise.name for promise in found if not promise.kept]


def test_the_divergence_falls_within_each_stage_whatever_it_is_between_them():
    falls = (1.0,) * 3 + (0.5,) * 3
    assert not _curve(*falls, *(4 * one for one in falls), stages=2)
    assert not _curve(*falls)


def test_a_stage_in_which_the_divergence_does_not_fall_breaks_its_promise():
    assert _curve(*(1.0,) * 3, *(0.5,) * 3, *(0.4,) * 6, stages=2) == [
        "divergence falls below 0.9 of its start in stage 2"
    ]


def test_probabilities_that_rollout_and_actor_disagree_about_break_the_promise():
    assert _curve(*(1.0,) * 3, *(0.5,) * 3, pearson=0.97) == ["rollout-vs-actor Pearson >= 0.98"]


def test_the_smoke_runs_pass_rates_have_every_training_prompt_of_the_toy_task(tmp_path):
    write_equal_rates(tmp_path / PASS_RATES)
    rates = read_pass_rates(tmp_path / PASS_RATES)
    assert {rate.pass_rate for rate in rates.values()} == {0.5}
    assert len(rates) == len(split_problems().train)


@pytest.mark.parametrize(("last", "expected"), [(1.5, []), (2.5, ["the validation loss falls"])])
def test_fine_tuning_is_to_lower_the_validation_loss(last, expected):
    rows = [{"val-aux/loss": 2.0}, {"training/global_step": 1.0}, {"training/global_step": 2.0, "val-aux/loss": last}]
    assert [promise.name for promise in sft_promises(rows, num_steps=2) if not promise.kept] == expected
