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
