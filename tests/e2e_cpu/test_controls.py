"""Runs that must learn nothing: what the quickstart shows comes from the teacher and from the optimizer."""

from __future__ import annotations

from tests.e2e_cpu.runs import run
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR
from opd.data.toy.models import TEACHER, build_model

# The quickstart's optimizer, in fewer steps; with its teacher, ten of them take the student from 0.32 beyond 0.8.
_AS_QUICKSTART = (
    "data.max_val_samples=400",
    "data.train_batch_size=128",
    "actor.ppo_mini_batch_size=128",
    "actor.ppo_micro_batch_size_per_gpu=128",
    "actor.learning_rate=4e-4",
    "actor.num_warmup_steps=10",
    "actor.betas=[0.9,0.98]",
    "trainer.total_steps=10",
    "trainer.test_freq=10",
)


def test_a_learning_rate_of_zero_leaves_the_student_as_it_was(tmp_path):
    before, after = run(tmp_path, "opd", *_AS_QUICKSTART, "actor.learning_rate=0").must_be_clean().accuracy()
    assert after == before


def test_a_random_teacher_teaches_nothing(tmp_path):
    # One-sided: a teacher that finds every token equally likely drives the student from all it was sure of. Its accuracy may
    # fall, and must not rise.
    teacher = tmp_path / "teacher"
    tokenizer = AutoTokenizer.from_pretrained(STUDENT_DIR)
    build_model(TEACHER, tokenizer, seed=0).save_pretrained(teacher)
    tokenizer.save_pretrained(teacher)
    before, after = run(tmp_path, "opd", *_AS_QUICKSTART, f"teacher.path={teacher}").must_be_clean().accuracy()
    assert after < before + 0.05


def test_the_same_ten_steps_with_the_real_teacher_do_teach(tmp_path):
    before, after = run(tmp_path, "opd", *_AS_QUICKSTART).must_be_clean().accuracy()
    assert before < 0.35
    assert after > 0.7
