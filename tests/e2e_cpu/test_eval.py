"""Evaluation end to end: every answer kept, the same numbers twice."""

import json

import pyarrow.parquet as pq
import pytest
from tests.e2e_cpu.runs import run, run_and_kill

from opd.data.toy.task import write_parquet
from opd.evaluation.pass_rates import read_pass_rates
from opd.evaluation.samples import read_generations


def _own_files(folder):
    """Write one benchmark in two variants, and JSON lines with two prompts beyond the limit."""
    _, heldout = write_parquet(folder / "toy", seed=3)
    rows = pq.read_table(heldout).slice(0, 8)
    files = [folder / "boxed" / "val_toy.parquet", folder / "dapo" / "val_toy.parquet", folder / "mine.jsonl"]
    for path in files[:2]:
        path.parent.mkdir()
        pq.write_table(rows, path)
    columns = ("data_source", "prompt", "reward_model")
    own = [{name: row[name] for name in columns} | {"data_source": "mine"} for row in rows.to_pylist()]
    for row in own[1], own[4]:
        row["prompt"][0]["content"] *= 8
    files[2].write_text("".join(json.dumps(row) + "\n" for row in own))
    own_indices = sorted(row["extra_info"]["index"] for row in rows.to_pylist())
    return f"data.val=[{','.join(map(str, files))}]", own_indices


def test_an_evaluation_keeps_every_answer_of_every_file_and_ends_with_a_table(tmp_path):
    files, own_indices = _own_files(tmp_path)
    outcome = run(tmp_path, "eval", files).must_be_clean()
    folder = outcome.run_dir / "eval"
    samples = read_generations((folder / "generations.parquet").read_bytes())
    results = outcome.result["eval"]
    asked = {"toy_add-boxed": own_indices, "toy_add-dapo": own_indices, "mine": [0, 2, 3, 5, 6, 7]}
    assert results.keys() == asked.keys()
    for name, problems in asked.items():
        answers = [sample for sample in samples if sample.data_source == name]
        assert sorted({sample.problem_index for sample in answers}) == problems
        assert len(answers) == len(problems) * 4
        num_right = sum(sample.acc for sample in answers)
        means = results[name]["means"]
        assert means["acc/mean"] == pytest.approx(num_right / len(answers))
        assert means["acc_of_all/mean"] == pytest.approx(num_right / 32)
        assert means["acc/pass@1"] <= means["acc/pass@2"] <= means["acc/pass@3"] <= means["acc/pass@4"]
        assert results[name]["num_dropped"] == 8 - len(problems)
    # The two variants of the benchmark hold the same prompts, and so do the file's own rows that were not too long.
    rates = read_pass_rates(folder / "pass_rates.parquet")
    assert sorted(rate.k for rate in rates.values()) == [8] * 2 + [12] * 6
    assert sum(rate.pass_rate * rate.k for rate in rates.values()) == sum(sample.acc for sample in samples)
    assert {rate.checkpoint for rate in rates.values()} == {"toy://student"}
    [row] = outcome.rows
    assert row["val-aux/num_overlong_dropped"] == row["val-aux/mine/num_dropped"] == 2
    assert row["val-aux/rollout/failed"] == row["val-aux/reward/failed"] == 0
    assert "toy_add-boxed" in outcome.output
    assert any("num_dropped" in line and line.rstrip(" │").endswith("0") for line in outcome.output.splitlines())


def test_a_killed_measuring_of_pass_rates_asks_the_others_and_ends_in_the_same_rates(tmp_path):
    sets = ("data.max_val_samples=400",)
    whole = run(tmp_path / "whole", "passrate", *sets).must_be_clean()
    folder = tmp_path / "killed"
    stored = folder / "out" / "store" / "passrate" / "eval" / "generations.parquet"
    run_and_kill(stored, folder, "passrate", *sets)
    num_stored = len(read_generations(stored.read_bytes())) // 4
    assert 0 < num_stored < 400
    resumed = run(folder, "passrate", *sets).must_be_clean()
    assert f"{num_stored} of 400 prompts have their answers of an earlier attempt" in resumed.output
    found, expected = (read_pass_rates(outcome.run_dir / "eval" / "pass_rates.parquet") for outcome in (resumed, whole))
    assert found == expected
    assert resumed.result["eval"] == whole.result["eval"]


def test_a_checkpoint_is_evaluated_not_the_model_it_began_as(tmp_path):
    trained = run(
        tmp_path / "train", "opd", "trainer.total_steps=3", "trainer.save_freq=3", "actor.learning_rate=3e-2",
        "trainer.val_before_train=false",
    ).must_be_clean()  # fmt: skip
    checkpoint = trained.run_dir / "checkpoints" / "global_step_3"
    greedy = ("rollout.val.num_samples=1", "rollout.val.temperature=0")
    ruined = run(tmp_path / "eval", "eval", *greedy, f"eval.checkpoint={checkpoint}").must_be_clean()
    assert ruined.result["eval"]["toy_add"]["means"]["acc/mean"] < 0.1, (
        "three steps at a hundredfold rate leave nothing of the start"
    )
