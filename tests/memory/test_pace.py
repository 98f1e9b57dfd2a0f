"""Seconds of a step's parts, against counts by hand for two tiny models and against what one H200 took."""

from dataclasses import replace

import pytest
from tests.memory.jobs import STUDENT, TEACHER, job

from opd.memory.job import GIB, Job
from opd.memory.pace import (
    CHECKPOINTING_SHARE,
    DECODE_SHARE,
    HOST_BYTES_A_SECOND,
    HOST_ROW_S,
    HOST_STEP_S,
    LAYER_S,
    STUDENT_REST_S,
    TEACHER_SHARE,
    Rates,
    make_pace,
    product_rates,
    render_pace,
    response_lengths,
)
from opd.memory.plan import make_plan
from opd.memory.shapes import ModelShape

UNIT = Rates(operations=1.0, read_bytes=1.0)


def test_a_teachers_forward_is_its_layers_products_and_attention():
    pace = make_pace(make_plan(job()), UNIT, [10, 6], prompt_tokens=2, num_ranks=1)
    products, attention = 2 * 4 * 2592 * (12 + 8), 2 * (12**2 + 8**2) * 16 * 4
    assert pace.teacher == pytest.approx((products + attention) / TEACHER_SHARE)


def test_a_frozen_models_weight_gradients_are_not_made():
    full, lora = (
        make_pace(make_plan(job(adapter_params=number)), UNIT, [10, 6], prompt_tokens=2, num_ranks=1).student
        for number in (None, 100)
    )
    # Tokens by the two layers, and answered tokens by the head: one product less of each.
    less = 2 * 2 * 656 * (12 + 8) + 2 * 16 * 100 * 8
    assert full - lora == pytest.approx(less / CHECKPOINTING_SHARE)


def test_the_student_alone_sees_a_steps_rows_once_for_each_epoch():
    once, twice = (make_pace(make_plan(job(epochs=num)), UNIT, [10, 6], prompt_tokens=2, num_ranks=1) for num in (1, 2))
    assert twice == replace(once, student=STUDENT_REST_S + 2 * (once.student - STUDENT_REST_S))


def test_a_rollout_is_its_longest_response_alone_and_what_every_row_adds():
    plan, weights = make_plan(job()), 2 * 2120
    pace = make_pace(plan, UNIT, [10, 6], prompt_tokens=2, num_ranks=1)
    alone = 10 * (2 * LAYER_S + weights)
    products = 2 * 2120 * 16 / DECODE_SHARE
    read = 2 * 2 * 8 * 2 * (10 * (2 + 5) + 6 * (2 + 3))
    assert pace.rollout == pytest.approx(alone + products + read)
    two = make_pace(plan, UNIT, [10, 6], prompt_tokens=2, num_ranks=2)
    assert two.rollout == pytest.approx(alone + (products + read) / 2), "the longest response is as long on two"


def test_many_short_rows_of_a_small_model_wait_for_the_scheduler():
    fast = Rates(operations=1e18, read_bytes=1e18)
    pace = make_pace(make_plan(job()), fast, [10] * 100, prompt_tokens=2, num_ranks=1)
    assert pace.rollout == pytest.approx(10 * HOST_STEP_S + 1000 * HOST_ROW_S)
    two = make_pace(make_plan(job()), fast, [10] * 100, prompt_tokens=2, num_ranks=2)
    assert two.rollout == pytest.approx(10 * HOST_STEP_S + 500 * HOST_ROW_S), "each server schedules its own rows"


def test_a_decoding_step_waits_for_the_host_while_it_has_many_rows_and_for_the_gpu_once_it_has_few():
    deep, many, few = replace(STUDENT, layers=200), 300, 10
    fast = Rates(operations=1e18, read_bytes=1e18)  # of the GPU's time the kernels' own is left, 9.2 ms a step
    pace = make_pace(make_plan(job(student=deep)), fast, [5] * (many - few) + [9] * few, prompt_tokens=2, num_ranks=1)
    assert pace.rollout == pytest.approx(5 * (HOST_STEP_S + many * HOST_ROW_S) + 4 * 200 * LAYER_S)


def test_an_offloaded_student_moves_to_the_device_and_back():
    pace = make_pace(make_plan(job(offload_params=True)), UNIT, [10], prompt_tokens=2, num_ranks=1)
    assert pace.moving == pytest.approx(2 * 4 * STUDENT.num_params / HOST_BYTES_A_SECOND)


def test_an_offloaded_teacher_is_waited_for_where_it_comes_slower_than_it_reads():
    plan = make_plan(job(offload_teacher=True))
    assert make_pace(plan, UNIT, [10], prompt_tokens=2, num_ranks=1).moving == 0
    pace = make_pace(plan, Rates(operations=1e18, read_bytes=1.0), [10], prompt_tokens=2, num_ranks=1)
    assert pace.moving == pytest.approx(2 * TEACHER.num_params / HOST_BYTES_A_SECOND - pace.teacher)


def test_recomputed_layers_take_longer_than_kept_ones_and_all_of_them_are_the_fastest():
    rates = [
        make_pace(make_plan(job(**changes)), UNIT, [10], prompt_tokens=2, num_ranks=1).student
        for changes in (
            {"checkpointing": True},
            {"checkpointing": False, "activation_share": 0.35},
            {"checkpointing": False, "activation_share": 0.6},
            {"checkpointing": False, "activation_share": 1.0},
        )
    ]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


def test_lengths_of_a_mean_are_those_of_a_log_normal_distribution_cut_at_the_longest():
    assert response_lengths(3, longest=7, mean=None) == [7, 7, 7]
    lengths = response_lengths(1000, longest=4096, mean=700)
    assert lengths == sorted(lengths)
    assert lengths[-1] == 4096
    assert 670 < sum(lengths) / 1000 < 700


def test_hours_and_cost_are_those_of_all_gpus_and_an_unmeasured_gpu_is_said_to_be():
    pace = replace(make_pace(make_plan(job()), UNIT, [10], prompt_tokens=2, num_ranks=1), rollout=3600.0)
    pace = replace(pace, teacher=0.0, student=0.0, weight_sync=0.0, moving=0.0, rest=0.0)
    step, run = render_pace(pace, UNIT, num_ranks=8, num_steps=10, price=2.5)
    assert step.startswith("a step: about 3600.0 s = rollout 3600.0")
    assert "not measured" in step
    assert step.endswith("on a slow or busy host up to 1.4 times as long")
    assert run.startswith("10 steps: about 80.0 GPU-hours, 200.00 at 2.5 a GPU-hour")


def test_an_experts_layer_counts_what_a_token_visits():
    experts = replace(STUDENT, num_experts=4, experts_per_token=1)
    assert experts.backbone_params == 2 * (STUDENT.layer_params + 4 * 8), "one expert and the router"


def _qwen3(hidden: int, layers: int, intermediate: int, heads: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        vocab_rows=151_936, hidden=hidden, layers=layers, intermediate=intermediate, num_heads=heads, num_kv_heads=8,
        head_dim=128, tied=tied, qk_norm=True,
    )  # fmt: skip


MEASURED = job(
    student=_qwen3(2048, 28, 6144, 16, tied=True), teacher=_qwen3(4096, 36, 12288, 32, tied=False), row_tokens=2112,
    response_tokens=2048, rows_per_step=128, mini_rows=128, train_tokens=4 * 2112, score_tokens=4 * 2112,
    checkpointing=False, activation_share=0.35, compiled=True, workspace_bytes=int(1.1 * GIB), device_bytes=int(139.8 * GIB),
)  # fmt: skip
"""The run of tests/benchmarks/gpu/last_step.json."""


def test_the_steps_of_an_h200_are_told_within_a_tenth():
    rates = product_rates("NVIDIA-H200")
    assert rates is not None
    pace = make_pace(make_plan(MEASURED), rates, [2048] * 128, prompt_tokens=14, num_ranks=1)
    assert pace.rollout == pytest.approx(13.9, rel=0.1)
    assert pace.teacher == pytest.approx(7.31, rel=0.1)
    assert pace.student == pytest.approx(8.09, rel=0.1)
    assert pace.step == pytest.approx(29.8, rel=0.1)


def test_micro_batches_of_two_short_rows_take_as_long_as_the_host_launches_them():
    # tests/benchmarks/gpu/NOTES.md, bench-plan: a 0.6B student on 256 rows of 526 tokens, two rows a micro-batch: 17.3 s.
    small = replace(
        MEASURED, student=_qwen3(1024, 28, 3072, 16, tied=True), row_tokens=526, response_tokens=512, rows_per_step=256,
        mini_rows=256, train_tokens=1052, activation_share=1.0,
    )  # fmt: skip
    rates = product_rates("NVIDIA-H200")
    assert rates is not None

    def student_s(job: Job) -> float:
        return make_pace(make_plan(job), rates, [512] * 256, prompt_tokens=14, num_ranks=1).student

    assert student_s(small) == pytest.approx(17.3, rel=0.1)
    assert student_s(replace(small, train_tokens=32_768)) - STUDENT_REST_S < 1.5


def test_every_update_of_a_step_has_micro_batches_of_its_own():
    fast = Rates(operations=1e18, read_bytes=1e18)

    def student_s(**changes) -> float:
        plan = make_plan(job(train_tokens=160, **changes))
        return make_pace(plan, fast, [10] * 16, prompt_tokens=2, num_ranks=1).student

    # 192 tokens of 16 rows: in one update two micro-batches; in eight updates, of 24 tokens each, eight.
    assert student_s(mini_rows=2) - STUDENT_REST_S == pytest.approx(4 * (student_s(mini_rows=16) - STUDENT_REST_S))


def test_the_memory_of_an_h200_is_told_within_a_twentieth():
    plan = make_plan(MEASURED)
    student = next(phase for phase in plan.phases if phase.name == "student")
    assert (student.total - student.parts["reserve"]) / GIB == pytest.approx(54.41, rel=0.05)


def test_a_rollout_with_carried_responses_decodes_a_full_batch_and_reads_those_on_their_way_again():
    plan, weights = make_plan(job()), 2 * 2120
    pace = make_pace(plan, UNIT, [10, 6], prompt_tokens=2, num_ranks=1, in_flight=4)
    alone = 4 * (2 * LAYER_S + weights)  # steps: 16 tokens of 4 responses at once
    again = 4 * (2 + (100 + 36) / 16 / 2)
    products = 2 * 2120 * (16 + again) / DECODE_SHARE
    read = 2 * 2 * 8 * 2 * (10 * (2 + 5) + 6 * (2 + 3))
    assert pace.rollout == pytest.approx(alone + products + read)


def test_a_full_batch_of_carried_responses_waits_for_the_host_in_every_step():
    fast = Rates(operations=1e18, read_bytes=1e18)
    plan = make_plan(job())
    pace = make_pace(plan, fast, [10] * 100, prompt_tokens=2, num_ranks=1, in_flight=50, keeps_prefixes=True)
    assert pace.rollout == pytest.approx(20 * (HOST_STEP_S + 50 * HOST_ROW_S))


def test_kept_prefixes_are_not_read_again():
    plan = make_plan(job())
    read_again, kept = (
        make_pace(plan, UNIT, [10, 6], prompt_tokens=2, num_ranks=1, in_flight=4, keeps_prefixes=keeps).rollout
        for keeps in (False, True)
    )
    again = 4 * (2 + (100 + 36) / 16 / 2)
    assert read_again - kept == pytest.approx(2 * 2120 * again / DECODE_SHARE)


def test_half_as_long_entries_of_the_servers_cache_take_half_the_bytes():
    whole, half = (
        make_pace(make_plan(job(key_value_bytes=num)), UNIT, [10, 6], prompt_tokens=2, num_ranks=1).rollout
        for num in (2, 1)
    )
    assert whole - half == pytest.approx(1 * 2 * 8 * 2 * (10 * (2 + 5) + 6 * (2 + 3)))


def test_no_update_waits_for_the_longest_response_where_unfinished_ones_are_carried():
    lengths = response_lengths(128, longest=4096, mean=700)
    plan, h200 = make_plan(job()), product_rates("H200")
    strict, carry = (
        make_pace(plan, h200, lengths, prompt_tokens=64, num_ranks=1, in_flight=at_once).rollout
        for at_once in (None, 256)
    )
    assert carry < strict / 2
