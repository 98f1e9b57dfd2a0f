"""A measuring of pass rates within a run that is asked to end keeps its answers, also of a batch that is not finished."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
from tests.e2e_cpu.runs import must_end_alike, run, run_and_end

from opd.data.toy.task import write_parquet
from opd.evaluation.pass_rates import PassRate, prompt_id, write_pass_rates
from opd.runs.attempts import ENDED_FILE, attempt_prefix
from opd.trainer.measured_rates import UNFINISHED_KEY

# With a file `until` next to it, its calls after that many do not return: a batch longer than any grace.
_SCORER = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent


def score(data_source, solution_str, ground_truth, extra_info):
    with open(HERE / "calls", "ab") as calls:
        calls.write(b".")
    until = HERE / "until"
    while until.exists() and os.path.getsize(HERE / "calls") > int(until.read_text()):
        (HERE / "waiting").touch()
        time.sleep(0.1)
    return float(solution_str.strip() == str(ground_truth))
"""


def _scorer(folder: Path) -> tuple[str, ...]:
    folder.mkdir()
    (folder / "scorer.py").write_text(_SCORER)
    return "reward.function=custom", f"reward.path={folder / 'scorer.py'}", "reward.entry=score", "reward.timeout_s=600"


def _pass_rates(path: Path) -> str:
    train, _ = write_parquet(path.parent / "toy", seed=3)
    prompts = [(row["prompt"], row["reward_model"]["ground_truth"]) for row in pq.read_table(train).to_pylist()]
    write_pass_rates(path, [PassRate(prompt_id(*prompt), 0.5, 8, "toy://student") for prompt in prompts])
    return f"opd.importance.problems.pass_rates={path}"


def test_a_measuring_at_a_stage_switch_that_is_asked_to_end_goes_on_to_the_same_rates_and_weights_bit_for_bit(tmp_path):
    sets = (
        "trainer.total_steps=4", "trainer.save_freq=4", "trainer.val_before_train=false", "data.max_train_samples=48",
        "trainer.total_epochs=9", "opd.stages=[{until: 2, loss_type: forward_kl}, {loss_type: reverse_kl}]",
        "opd.importance.problems.weights=competence", "opd.importance.problems.drop=false",
        "opd.importance.problems.recompute.at_stages=true", "opd.importance.problems.recompute.num_samples=3",
        _pass_rates(tmp_path / "pass_rates.parquet"),
    )  # fmt: skip
    # Two steps score 16 answers each; the measuring's three batches have 16 prompts with 48 answers. It ends within the second,
    # where at most 6 + 4 answers are lacking, to 10 of 16 prompts.
    whole = run(tmp_path / "whole", "opd", *sets, *_scorer(tmp_path / "of whole")).must_be_clean()
    scorer = _scorer(folder := tmp_path / "of ended")
    (folder / "until").write_text(str(2 * 16 + 48 + 38))
    ended = run_and_end(folder / "waiting", tmp_path / "ended", "opd", *sets, *scorer)
    assert ended.returncode == 130, ended.output[-4000:]
    assert "Traceback" not in ended.output
    assert (ended.run_dir / attempt_prefix(1) / ENDED_FILE).exists(), "it ended by itself, within its grace"
    (folder / "until").unlink()
    resumed = run(tmp_path / "ended", "opd", *sets, *scorer).must_be_clean()
    assert "saved step 2; the same command goes on from here" in ended.output
    assert (ended.run_dir / "checkpoints" / "global_step_2" / "COMPLETE").exists()
    assert (tmp_path / "ended" / "out" / "store" / "opd" / UNFINISHED_KEY).exists(), "for an attempt on another disk"
    assert "resuming from step 2" in resumed.output
    found = re.search(r"pass rates of (\d+) of 48 prompts are of an earlier attempt", resumed.output)
    assert found is not None
    assert 16 + 6 <= int(found[1]) < 32
    assert [row["training/global_step"] for row in resumed.steps] == [1, 2, 3, 4]
    for mine, theirs in zip(resumed.steps, whole.steps, strict=True):
        for name in ("opd/loss", "opd/problem_weight_mean", "opd/pass_rate_mean", "opd/pass_rate_failed_share"):
            assert mine.get(name) == theirs.get(name), name
    assert "opd/pass_rate_mean" in whole.steps[2]
    kept = [pq.read_table(one.run_dir / "problems" / "step-000003.parquet") for one in (whole, resumed)]
    assert kept[0].equals(kept[1])
    must_end_alike(resumed, whole, 4)
