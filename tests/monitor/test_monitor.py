"""The monitor goes through rows: when a fault begins, when it ends, and what a run keeps of it."""

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
    assert lines[0].startswith("since step 2: most answers end at the length limit (answers-cut); look at data.max")
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
    names = [name for name in SOUND if "teacher" in name or name in ("opd/lr", "opd/entropy", "opd/divergence")]
    for value in (math.nan, math.inf):
        assert seen([row(**dict.fromkeys(names, value))] * 4)[1] == []
    assert seen([row(**{"opd/lr": "NaN"})] * 4)[1] == []  # type: ignore[dict-item] # as a row's JSON has it


def test_what_stands_and_what_stood_is_read_back_from_the_rows():
    rows = [row(response_length__clip_ratio=share, opd__lr=0.0) for share in [0.9, 0.0, 0.0, 0.0]]
    metrics, _ = seen(rows)
    kept = [{"step": step, **one} for step, one in enumerate(metrics, start=1)]
    assert findings(kept) == [Finding.of("answers-cut", since=1, until=4), Finding.of("lr-zero", since=1)]
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
    "opd/teacher_surprise": 0.7, "opd/accuracy": 0.6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("teacher-flat", {"opd/teacher_entropy": 11.9, "opd/teacher_entropy_std": 1e-6}),
        ("teacher-shifted", {"opd/teacher_prefers_neighbour": 0.8}),
        ("teacher-surprised", {"opd/teacher_surprise": 9.5}),
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
        ("rewards-fall", {"opd/accuracy": 0.3}),
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
    also = {"rollout-disagrees": {"sampling"}, "teacher-flat": {"teacher-no-better"}, "lr-jump": {"sampling"}}
    assert name in named
    assert named <= {name} | also.get(name, set()), lines


def lengthened(factor: float, **values: float) -> dict[str, float]:
    longer = {name: SOUND[name] * factor for name in ("response_length/mean", "opd/tool_mask/llm_tokens")}
    return row(**{**SOUND, **longer, "tool_mask/llm_tokens": 1e9, **values})


def of(**values: float) -> dict[str, float]:
    return row(**{**SOUND, **{name.replace("__", "/"): value for name, value in values.items()}})


FEW = dict(
    zip(("opd/teacher_preference", "opd/valid_rows", "opd/tool_mask/llm_tokens"), (-0.5, 16.0, 1000.0), strict=True)
)
TOOLS = {"response_length/mean": 900.0, "opd/tool_mask/tool_tokens": 38400.0, "tool_mask/tool_tokens": 38400.0}
LEARNS_TO_CALL = [(1.0, 1.0), (1.0, 1.0), (1.1, 1.2), (1.6, 1.9), (1.9, 2.2), (2.0, 2.3), (2.0, 2.3), (2.1, 2.3)]


@pytest.mark.parametrize(
    "rows",
    [
        [row(training__rollout_probs_diff_mean=0.01)] * 4,  # a rollout that always differed
        [row(opd__divergence=value) for value in (1.0, 0.5, 0.1, 1e-7)],  # a student that has learnt
        [row(**{**SOUND, "opd/lr_used": 0.0, "opd/weight_change": 0.0}), of(), of()],  # a step of rate 0 moves nothing
        [lengthened(1.0, **{"opd/stage": 1.0, "opd/entropy": 3.0})] * 5  # a stage has a start of its own
        + [lengthened(4.0, **{"opd/stage": 2.0, "opd/accuracy": 0.2, "opd/entropy": 0.08, "opd/teacher_entropy": 0.9})]
        * 8,
        [row(**{"response_length/mean": length, "sft/num_rows": 8.0}) for length in (100.0,) * 5 + (400.0,) * 5],
        [of()] * 5 + [row(**{**SOUND, **TOOLS})] * 5,  # tools wrote
        [row(response_length__mean=length, tool_mask__tool_tokens=50.0) for length in (100.0,) * 5 + (400.0,) * 5],
        [row(**{**SOUND, **FEW})] * 6,  # too few rows for a correlation
        [of(opd__teacher_preference=-0.2, opd__valid_rows=1000.0, opd__batch_size=1000.0)] * 6,
        [of(rollout__duplicate_answers=0.9, opd__tool_mask__llm_tokens=640.0, opd__num_tokens=640.0)] * 4,  # short ones
        [of(opd__num_tokens=8000.0, opd__batch_size=128.0)] * 4,  # two epochs
        [of(tool_mask__tool_tokens=0.0, opd__tool_mask__tool_tokens=0.0)] * 4,  # calls that wrote nothing
        [of(training__rollout_probs_diff_mean=0.05, rollout__truncated=1.0)] * 4,  # samples among the likeliest tokens
        [row(**{"opd/teacher_prefers_neighbour": 1.0, "opd/teacher_pairs": 16.0})] * 3,  # a few tokens say nothing
        [row(**{"opd/teacher_prefers_neighbour": 1.0, "opd/num_tokens": 16.0})] * 3,
        [row(**{"opd/teacher_entropy": 0.9, "opd/teacher_entropy_std": 0.0, "opd/num_tokens": 20.0})] * 3,
        [row(opd__lr_used=rate) for rate in (1e-7, 2e-7, 4e-7, 6e-7, 6e-7, 5e-7, 3e-7, 1e-7, 1e-8, 0.0)],  # a schedule
    ],
)
def test_sound_rows_that_look_like_a_fault_are_none(rows):
    assert seen(rows)[1] == []


@pytest.mark.parametrize(
    ("rows", "name", "since"),
    [
        ([row(training__rollout_probs_diff_mean=value) for value in (1e-7, 2e-7, 3e-4)], "rollout-stale", 3),
        ([row(opd__divergence=1e-8)] * 3, "teacher-no-better", 3),  # it is the student
        ([lengthened(factor) for factor in (1, 1, 1, 1, 3, 3, 3)], "length-inflation", 5),
        ([row(opd__teacher_prefers_neighbour=0.9, opd__teacher_pairs=30.0)] * 2, "teacher-shifted", 2),  # pooled
        ([row(critic__score__min=0.0, critic__score__max=most) for most in (1.0, 0, 0, 0, 0, 0)], "rewards-equal", 2),
        ([row(**{"opd/score_mean": 0.0, "opd/accuracy": 0.0})] * 5, "rewards-equal", 1),
        ([row(opd__lr_used=rate) for rate in (6e-7, 6e-7, 6e-7, 1e-8, 2e-8, 3e-8)], "lr-jump", 5),  # the warm-up again
        # A start is found among the first rows that measure it.
        ([row()] * 3 + [row(opd__entropy=1.0)] * 3 + [row(opd__entropy=0.01)], "entropy-collapse", 7),
    ],
)
def test_a_fault_over_several_rows_is_named_with_the_last_and_dated_from_the_first(rows, name, since):
    assert seen(rows)[0][-1] == {f"fault/{name}": since}


def test_turns_are_as_long_as_before_only_among_conversations_of_as_many():
    then = [(2.0, longer) for longer in (2.3, 2.4, 5.0, 5.0, 5.0, 5.0)]
    pairs = LEARNS_TO_CALL + then
    metrics = seen([lengthened(turns * longer, **{"num_turns/mean": 2 * turns}) for turns, longer in pairs])[0]
    assert [name for one in metrics[:-4] for name in one] == []
    assert "fault/length-inflation" in metrics[-1]
