"""Runs that must learn nothing: what the quickstart shows comes from the teacher and from the optimizer."""

from __future__ import annotations

from tests.e2e_cpu.runs import run

_FULL = ("data.max_val_samples=400", "trainer.total_steps=10", "trainer.test_freq=10", "data.train_batch_size=64",
         "actor.ppo_mini_batch_size=64", "actor.ppo_micro_batch_size_per_gpu=64")  # fmt: skip


def test_a_learning_rate_of_zero_leaves_the_student_as_it_was(tmp_path):
    before, after = run(tmp_path, "opd", *_FULL, "actor.learning_rate=0").must_be_clean().accuracy()
    assert after == before
