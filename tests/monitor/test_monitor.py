"""The monitor goes through rows: when a fault begins, when it ends, and what a run keeps of it."""

from __future__ import annotations

import math

import pytest

from opd.monitor.monitor import Finding, Monitor, findings, standing, summary


def row(**values: float) -> dict[str, float]:
    return {"training/global_step": 1, **{name.replace("__", "/"): value for name, value in values.items()}}


def seen(rows: list[dict[str, float]]) -> tuple[list[dict[str, float]], list[str]]:
    """The faults' metrics of each row, and all lines."""
    monitor = Monitor()
    found = [monitor.see(step, one) for step, one in enumerate(rows, start=1)]
    return [metrics for metrics, _ in found], [line for _, lines in found for line in lines]


def test_a_fault_is_told_once_when_it_begins_and_once_when_it_ends():
    cut = [0.0, 0.9, 0.9, 0.1, 0.9, 0.0, 0.0, 0.0, 0.0]
    metrics, lines = seen([row(response_length__clip_ratio=share) for share in cut])
    assert [one.get("fault/answers-cut") for one in metrics] == [None, 2, 2, 2, 2, 2, 2, 0, None]
    assert len(lines) == 2
    assert lines[0].startswith(
        "since step 2: most answers end at the length limit (answers-cut); look at data.max_resp"
    )
    assert lines[0].endswith("[90% of them]")
    assert lines[1].startswith("gone with step 8")


def test_a_fault_that_may_be_chance_must_last_and_is_dated_from_its_first_row():
    rates = [0.0, 1e-6, 0.0, 0.0, 0.0]
    metrics, lines = seen([row(opd__lr=rate) for rate in rates])
    assert [one.get("fault/lr-zero") for one in metrics] == [None, None, None, None, 3]
    assert len(lines) == 1


def test_a_row_that_cannot_tell_neither_names_a_fault_nor_ends_it():
    every_second = [row(response_length__clip_ratio=0.9), row(), row(), row(), row()]
    metrics, _ = seen(every_second)
    assert [one["fault/answers-cut"] for one in metrics] == [1] * 5
    assert Monitor().see(1, {"val-core/a/acc/mean@1": 0.0}) == ({}, [])


def test_values_that_are_no_number_decide_nothing():
    names = (
        "opd/lr",
        "opd/entropy",
        "opd/teacher_entropy",
        "opd/teacher_entropy_std",
        "opd/divergence",
        "opd/surprise_gap",
        "num_turns/mean",
    )
    for value in (math.nan, math.inf):
        assert seen([row(**dict.fromkeys(names, value))] * 4)[1] == []
    assert seen([row(**{"opd/lr": "NaN"})] * 4)[1] == []  # type: ignore[dict-item] # as a row's JSON has it


def test_what_stands_and_what_stood_is_read_back_from_the_rows():
    rows = [row(response_length__clip_ratio=share, opd__lr=0.0) for share in [0.9, 0.0, 0.0, 0.0]]
    metrics, _ = seen(rows)
    kept = [{"step": step, **one} for step, one in enumerate(metrics, start=1)]
    assert findings(kept) == [
        Finding.of("answers-cut", since=1, until=4),
        Finding.of("lr-zero", since=1),
    ]
    latest = {name: value for one in kept for name, value in one.items()}
    assert standing(latest) == [Finding.of("lr-zero", since=1)]
    assert [found["name"] for found in summary(kept)["faults"]] == ["answers-cut", "lr-zero"]


def test_a_name_of_another_version_is_shown_as_it_is():
    assert "since step 3: from-later (from-later)" in str(standing({"fault/from-later": 3.0})[0])
    assert standing({"fault/a": math.inf, "fault/b": -1.0}) == []


SOUND = {
    "opd/teacher_entropy": 0.2, "opd/teacher_entropy_std": 0.4, "opd/teacher_prefers_neighbour": 0.1, "opd/entropy": 0.3,
    "data/prompts_off_template": 0.0, "opd/surprise_gap": 0.001, "opd/surprise_gap_z": 0.5, "opd/num_tokens": 4000.0,
    "opd/num_updates": 2.0, "opd/floored_share": 0.0, "opd/weight_change": 1e-4, "opd/lr": 1e-6, "opd/lr_used": 1e-6, "opd/grad_norm": 1.0,
    "training/rollout_probs_diff_mean": 0.002, "rollout/trajectories": 64.0, "rollout/failed": 1.0, "reward/failed": 0.0,
    "rollout/empty": 0.0, "data/duplicate_prompts": 0.02, "data/repeated_prompts": 0.0, "rollout/duplicate_answers": 0.1,
    "opd/surprise": 0.3, "response_length/mean": 300.0, "response_length/clip_ratio": 0.1, "opd/divergence": 0.4,
    "opd/teacher_preference": 0.2, "opd/batch_size": 64.0, "agent/tool/a/calls": 9.0, "opd/tool_mask/tool_tokens": 70.0,
    "opd/valid_rows": 64.0, "tool_mask/llm_tokens": 4000.0, "tool_mask/tool_tokens": 70.0, "opd/tool_mask/llm_tokens": 4000.0,
    "opd/teacher_pairs": 800.0, "critic/score/min": 0.0, "critic/score/max": 1.0, "opd/reward_weight_max": 3.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("teacher-flat", {"opd/teacher_entropy": 11.9, "opd/teacher_entropy_std": 1e-6}),
        ("teacher-shifted", {"opd/teacher_prefers_neighbour": 0.8}),
        ("prompt-template", {"data/prompts_off_template": 1.0}),
        ("sampling", {"opd/surprise_gap": 0.1, "opd/surprise_gap_z": 9.0}),
        ("sampling", {"opd/surprise_gap": -0.1, "opd/surprise_gap_z": -9.0}),
        ("divergence-floored", {"opd/floored_share": 0.9}),
        ("weights-frozen", {"opd/weight_change": 0.0}),
        ("rollout-disagrees", {"training/rollout_probs_diff_mean": 0.1}),
        ("tool-tokens-trained", {"opd/tool_mask/tool_tokens": 0.0}),
        ("tool-tokens-trained", {"opd/num_tokens": 4100.0}),
        ("answers-failed", {"rollout/failed": 20.0}),
        ("answers-failed", {"reward/failed": 20.0}),
        ("answers-failed", {"rollout/empty": 0.3}),
        ("duplicate-rows", {"data/duplicate_prompts": 0.5}),
        ("duplicate-rows", {"data/repeated_prompts": 1.0}),
        ("duplicate-rows", {"rollout/duplicate_answers": 0.9}),
        ("answers-cut", {"response_length/clip_ratio": 0.8}),
        ("entropy-collapse", {"opd/entropy": 0.01}),
        ("length-inflation", {"opd/tool_mask/llm_tokens": 8000.0}),
        ("teacher-no-better", {"opd/teacher_preference": -0.6}),
        ("teacher-no-better", {"opd/teacher_entropy": 4.0}),
        ("divergence-grows", {"opd/divergence": 4.0}),
        ("gradient-grows", {"opd/grad_norm": 200.0}),
        ("lr-jump", {"opd/lr_used": 1e-4}),
        ("answers-failed", {"reward/unread": 60.0}),
        ("one-row-trains", {"opd/reward_weight_max": 40.0}),
        ("length-collapse", {"opd/tool_mask/llm_tokens": 1000.0}),
        # Half of the ranks: the sums are as sound as before.
        ("teacher-flat", {"opd/teacher_entropy/rank_max": 0.3, "opd/teacher_entropy_std/rank_min": 1e-7}),
        ("teacher-shifted", {"opd/teacher_prefers_neighbour/rank_max": 0.9}),
        ("weights-frozen", {"opd/weight_change/rank_min": 0.0}),
    ],
)
def test_each_fault_is_named_by_its_own_signs_and_by_nothing_else(name, values):
    rows = [row(**SOUND)] * 6 + [row(**{**SOUND, **values})] * 3
    metrics, lines = seen(rows)
    assert metrics[5] == {}
    named = {key.removeprefix("fault/") for one in metrics for key in one}
    also = {"rollout-disagrees": {"sampling"}, "teacher-flat": {"teacher-no-better"}, "lr-jump": {"sampling"}}.get(
        name, set()
    )
    assert name in named
    assert named <= {name} | also, lines


def test_a_rollout_that_stays_behind_is_told_from_one_that_always_differed():
    grows = [row(training__rollout_probs_diff_mean=value) for value in (1e-7, 2e-7, 3e-4)]
    assert "rollout-stale" in seen(grows)[1][0]
    assert seen([row(training__rollout_probs_diff_mean=0.01)] * 4)[1] == []


def test_a_teacher_that_is_the_student_is_named_and_a_student_that_has_learnt_is_not():
    same = [row(opd__divergence=1e-8)] * 3
    assert "it is the student" in seen(same)[1][0]
    assert seen([row(opd__divergence=value) for value in (1.0, 0.5, 0.1, 1e-7)])[1] == []


def test_a_step_whose_rate_was_0_moves_nothing_and_is_no_fault():
    first = {**SOUND, "opd/lr_used": 0.0, "opd/weight_change": 0.0}  # `opd/lr` is the second step's rate
    assert seen([row(**first), row(**SOUND), row(**SOUND)])[1] == []


def lengthened(factor: float, **values: float) -> dict[str, float]:
    longer = {name: SOUND[name] * factor for name in ("response_length/mean", "opd/tool_mask/llm_tokens")}
    return row(**{**SOUND, **longer, "tool_mask/llm_tokens": 1e9, **values})


def test_answers_that_a_horizon_lets_grow_are_not_inflated():
    grows = [lengthened(step, **{"opd/horizon": 10.0 * step}) for step in range(1, 12)]
    assert seen(grows)[1] == []
    stays = [lengthened(1.0 if step < 5 else 3.0, **{"opd/horizon": 10.0}) for step in range(1, 9)]
    assert any("fault/length-inflation" in one for one in seen(stays)[0])


def test_turns_are_as_long_as_before_only_among_conversations_of_as_many():
    learns = [(1.0, 1.0), (1.0, 1.0), (1.1, 1.2), (1.6, 1.9), (1.9, 2.2), (2.0, 2.3), (2.0, 2.3), (2.1, 2.3)]
    then = [(2.0, longer) for longer in (2.3, 2.4, 5.0, 5.0, 5.0, 5.0)]
    metrics = seen([lengthened(turns * longer, **{"num_turns/mean": 2 * turns}) for turns, longer in learns + then])[0]
    assert [name for one in metrics[:-4] for name in one] == []
    assert "fault/length-inflation" in metrics[-1]


def test_the_start_of_lengths_and_entropies_is_that_of_the_stage():
    first, second = {"opd/stage": 1.0, "opd/entropy": 3.0}, {"opd/stage": 2.0, "opd/entropy": 0.08}
    rows = [lengthened(1.0, **first)] * 5 + [lengthened(4.0, **second, **{"opd/teacher_entropy": 0.9})] * 8
    assert seen(rows)[1] == []


def test_given_answers_and_what_tools_wrote_inflate_nothing():
    rows = [{"response_length/mean": length, "sft/num_rows": 8.0} for length in (100.0,) * 5 + (400.0,) * 5]
    assert seen([row(**values) for values in rows])[1] == []
    tools = {"response_length/mean": 900.0, "opd/tool_mask/tool_tokens": 38400.0, "tool_mask/tool_tokens": 38400.0}
    assert seen([row(**SOUND)] * 5 + [row(**{**SOUND, **tools})] * 5)[1] == []
    grpo = [row(response_length__mean=length, tool_mask__tool_tokens=50.0) for length in (100.0,) * 5 + (400.0,) * 5]
    assert seen(grpo)[1] == []


def test_a_teachers_preference_counts_the_rows_of_one_epoch_and_must_be_a_clear_one():
    few = {"opd/teacher_preference": -0.5, "opd/valid_rows": 16.0, "opd/batch_size": 64.0, "opd/num_tokens": 16000.0}
    assert seen([row(**{**SOUND, **few, "opd/tool_mask/llm_tokens": 1000.0})] * 6)[1] == []
    faint = {"opd/teacher_preference": -0.2, "opd/valid_rows": 1000.0, "opd/batch_size": 1000.0}
    assert seen([row(**{**SOUND, **faint})] * 6)[1] == []


@pytest.mark.parametrize(
    "values",
    [
        {"rollout/duplicate_answers": 0.9, "opd/tool_mask/llm_tokens": 640.0, "opd/num_tokens": 640.0},  # short answers
        {"opd/num_tokens": 8000.0, "opd/batch_size": 128.0},  # two epochs
        {"tool_mask/tool_tokens": 0.0, "opd/tool_mask/tool_tokens": 0.0},  # calls that wrote nothing
        {"training/rollout_probs_diff_mean": 0.05, "rollout/truncated": 1.0},  # samples among the likeliest tokens
    ],
)
def test_sound_rows_that_look_like_a_fault_are_none(values):
    assert seen([row(**{**SOUND, **values})] * 4)[1] == []


@pytest.mark.parametrize(
    "values",
    [
        {"opd/teacher_prefers_neighbour": 1.0, "opd/teacher_pairs": 16.0},
        {"opd/teacher_prefers_neighbour": 1.0, "opd/num_tokens": 16.0},
        {"opd/teacher_entropy": 0.9, "opd/teacher_entropy_std": 0.0, "opd/num_tokens": 20.0},
    ],
)
def test_a_few_tokens_say_nothing_of_a_teacher(values):
    assert seen([row(**values)] * 3)[1] == []


def test_few_tokens_a_step_are_pooled_over_steps():
    shifted = row(**{"opd/teacher_prefers_neighbour": 0.9, "opd/teacher_pairs": 30.0})
    assert seen([shifted])[1] == []
    assert "teacher-shifted" in "".join(seen([shifted] * 2)[1])


def test_equal_rewards_are_named_after_five_steps_of_them():
    groups = [row(**{"critic/score/min": 0.0, "critic/score/max": most}) for most in [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    assert [sorted(one) for one in seen(groups)[0]] == [[]] * 5 + [["fault/rewards-equal"]]
    distilled = [row(**{"opd/score_mean": 0.0, "opd/accuracy": 0.0})] * 5
    assert seen(distilled)[0][-1] == {"fault/rewards-equal": 1.0}


@pytest.mark.parametrize(
    ("rates", "names"),
    [
        ([1e-7, 2e-7, 4e-7, 6e-7, 6e-7, 5e-7, 3e-7, 1e-7, 1e-8, 0.0], set()),  # warm-up, then a decay
        ([6e-7, 6e-7, 6e-7, 1e-8, 2e-8, 3e-8], {"fault/lr-jump"}),  # the warm-up again
    ],
)
def test_a_schedule_jumps_only_where_it_warms_up_again(rates, names):
    metrics, _ = seen([row(opd__lr_used=rate) for rate in rates])
    assert {name for one in metrics for name in one} == names


def test_a_start_is_found_among_the_first_rows_that_measure_it():
    rows = [row()] * 3 + [row(opd__entropy=1.0)] * 3 + [row(opd__entropy=0.01)]
    assert seen(rows)[0][-1] == {"fault/entropy-collapse": 7.0}
