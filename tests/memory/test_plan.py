"""Order in which a plan gives things up, and its advice where nothing is left to give up."""

from dataclasses import replace

import pytest
from tests.memory.jobs import TEACHER, job

from opd.memory.plan import make_plan
from opd.memory.table import render


def peak(job) -> int:
    return make_plan(job).peak.total


def test_with_room_nothing_is_offloaded_the_teacher_included():
    plan = make_plan(job(device_bytes=10**12))
    choice = plan.choice
    assert plan.fits
    assert not any([choice.offload_teacher, choice.offload_params, choice.offload_optimizer])
    assert choice.defer_sync
    assert choice.keep_gathered
    assert choice.cache_bytes == plan.job.hidden_bytes


def test_a_device_exactly_as_large_as_the_peak_fits_and_one_byte_less_gives_the_cheapest_thing_up():
    exact = peak(job(device_bytes=10**12))
    assert make_plan(job(device_bytes=exact)).choice == make_plan(job(device_bytes=10**12)).choice
    less = make_plan(job(device_bytes=exact - 1))
    assert less.fits
    assert less.choice == replace(make_plan(job()).choice, cache_bytes=less.job.hidden_bytes - 1)


def test_what_is_given_up_follows_the_memory_down():
    size, seen = peak(job(device_bytes=10**12, num_ranks=2)), []
    while (plan := make_plan(job(device_bytes=size, num_ranks=2))).fits:
        choice = plan.choice
        spills = choice.cache_bytes < plan.job.hidden_bytes
        seen.append((choice.keep_gathered, spills, choice.offload_teacher, choice.offload_params))
        size -= 1000
    order = list(dict.fromkeys(seen))
    assert order[0] == (True, False, False, False)
    assert any(spills and not teacher for _, spills, teacher, _ in order)
    assert order[-1][2:] == (True, True) or order[-1][2:] == (True, False)
    # A cache that spilled grows again when a larger thing has gone.
    assert any(not spills and teacher for _, spills, teacher, _ in order)


AUTO = {"checkpointing": None, "compiled": True}


@pytest.mark.slow
def test_activations_are_given_up_share_by_share_and_recomputed_before_anything_is_offloaded():
    deep = replace(job().student, layers=20)
    wide = {"train_tokens": 40_000, "mini_rows": 4000, "rows_per_step": 4000, "student": deep}
    size, seen = peak(job(device_bytes=10**12, **AUTO, **wide)), []
    least = peak(job(device_bytes=1, **AUTO, **wide))
    while size > least and (plan := make_plan(job(device_bytes=size, **AUTO, **wide))).fits:
        seen.append((plan.choice.checkpointing, plan.choice.activation_share, plan.choice.offload_teacher))
        size -= 400_000
    order = list(dict.fromkeys(seen))
    assert [share for checkpointing, share, _ in order if not checkpointing][:4] == [1.0, 0.7, 0.5, 0.35]
    assert order[4][0], "then the layers are recomputed"
    assert not any(offloaded for checkpointing, _, offloaded in order if not checkpointing)


# Weights of 0.78 MB: more than shorter micro-batches or forwards save below, less than the activations of those that are wished for.
HEAVY = replace(TEACHER, layers=150)


def test_micro_batches_are_as_long_as_wished_where_what_was_given_up_later_makes_room_for_them():
    facts = {
        "teachers": ((HEAVY, 2),), "train_tokens": 2000, "least_train_tokens": 1000, "mini_rows": 400, "rows_per_step": 400, "keeps_hidden": False,
    }  # fmt: skip
    plan = make_plan(job(**facts, device_bytes=peak(job(**facts, offload_teacher=True))))
    assert plan.fits
    assert plan.choice.offload_teacher
    assert plan.choice.train_tokens == 2000


def test_a_short_forward_without_a_gradient_makes_room_in_the_teachers_phase():
    plan = make_plan(job(device_bytes=peak(job(score_tokens=500)), score_tokens=4000, score_is_planned=True))
    assert plan.fits
    assert plan.choice.score_tokens == 500
    assert not plan.choice.offload_teacher


def test_a_wish_is_never_overruled():
    plan = make_plan(job(device_bytes=10**12, offload_teacher=True))
    assert plan.choice.offload_teacher
    tight = make_plan(job(device_bytes=peak(job(device_bytes=10**12)) - 20_000, offload_teacher=False))
    assert not tight.choice.offload_teacher


def test_one_micro_batch_an_update_has_nothing_to_defer():
    choice = make_plan(job(mini_rows=2)).choice
    assert not choice.defer_sync
    assert not choice.keep_gathered


def test_the_table_has_a_column_a_phase_and_adds_up():
    text = render(make_plan(job(device_bytes=10**12, rollout_share=0.5)))
    header = text.splitlines()[0]
    for name in ("rollout", "teacher", "student", "optimizer step", "weight sync"):
        assert name in header
    assert "fits:" in text
    assert "teacher on the device" in text
