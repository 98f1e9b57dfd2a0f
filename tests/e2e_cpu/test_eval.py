"""Evaluation end to end: every answer kept, the same numbers twice."""

from __future__ import annotations

import pytest
from tests.e2e_cpu.runs import run

from opd.evaluation.samples import read_generations


def test_an_evaluation_keeps_every_answer_and_ends_with_table_and_picture(tmp_path):
    outcome = run(tmp_path, "eval").must_be_clean()
    folder = outcome.run_dir / "eval"
    samples = read_generations(folder / "generations.parquet")
    assert len(samples) == 40 * 4
    result = outcome.result["eval"]["toy_add"]
    assert result["mean"] == pytest.approx(sum(sample.acc for sample in samples) / len(samples))
    assert result["pass_at"] == sorted(result["pass_at"])
    assert result["pass_at"][0] == pytest.approx(result["mean"])
    assert (folder / "pass_at_k.png").stat().st_size > 5_000
    assert "mean@n" in outcome.output


@pytest.mark.matrix
def test_the_same_evaluation_twice_gives_the_same_answers(tmp_path):
    first, second = (run(tmp_path / name, "eval").must_be_clean() for name in ("a", "b"))
    read = [read_generations(outcome.run_dir / "eval" / "generations.parquet") for outcome in (first, second)]
    assert read[0] == read[1]


def test_a_checkpoint_is_evaluated_not_the_model_it_began_as(tmp_path):
    trained = run(
        tmp_path / "train", "opd", "trainer.total_steps=3", "trainer.save_freq=3", "actor.learning_rate=3e-2",
        "trainer.val_before_train=false",
    ).must_be_clean()  # fmt: skip
    checkpoint = trained.run_dir / "checkpoints" / "global_step_3"
    greedy = ("rollout.val.num_samples=1", "rollout.val.temperature=0")
    ruined = run(tmp_path / "eval", "eval", *greedy, f"eval.checkpoint={checkpoint}").must_be_clean()
    assert ruined.result["eval"]["toy_add"]["mean"] < 0.1, (
        "three steps at a hundredfold rate leave nothing of the start"
    )

    (checkpoint / "COMPLETE").unlink()
    refused = run(tmp_path / "refused", "eval", f"eval.checkpoint={checkpoint}")
    assert refused.returncode == 1
    assert "global_step_3" in refused.output
    assert "Traceback" not in refused.output
