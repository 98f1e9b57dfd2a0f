"""Evaluation end to end: every answer kept, the same numbers twice."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.e2e_cpu.runs import run

from opd.data.toy.task import write_parquet
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


def _small_set(path, *, source, rows):
    """Some held-out problems under another name, as prepared files have it."""
    if not path.parent.exists():
        path.parent.mkdir()
    _, heldout = write_parquet(path.parent / "toy", seed=3)
    table = pq.read_table(heldout).slice(*rows)
    index = table.schema.get_field_index("data_source")
    pq.write_table(table.set_column(index, "data_source", pa.array([source] * len(table))), path)
    return path


@pytest.mark.matrix
def test_several_data_sets_are_evaluated_in_one_start_each_with_its_own_numbers(tmp_path):
    sets = {"first": (0, 12), "second": (100, 20), "third": (200, 7)}
    files = [_small_set(tmp_path / "data" / f"{name}.parquet", source=name, rows=rows) for name, rows in sets.items()]
    paths = ",".join(map(str, files))
    outcome = run(tmp_path, "eval", f"data.val=[{paths}]", "data.max_val_samples=1000").must_be_clean()
    results = outcome.result["eval"]
    assert {name: found["num_problems"] for name, found in results.items()} == {"first": 12, "second": 20, "third": 7}
    samples = read_generations(outcome.run_dir / "eval" / "generations.parquet")
    for name, (_, num_problems) in sets.items():
        answers = [sample.acc for sample in samples if sample.data_source == name]
        assert len(answers) == num_problems * 4
        assert results[name]["mean"] == pytest.approx(sum(answers) / len(answers))
        assert any(name in line for line in outcome.output.splitlines())
    [row] = outcome.rows
    assert {key.split("/")[1] for key in row if key.startswith("val-core/")} == set(sets)


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
