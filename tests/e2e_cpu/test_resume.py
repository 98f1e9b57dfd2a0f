"""A killed run continues from its last complete checkpoint to the same weights, bit for bit."""

import json
import math
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.e2e_cpu.runs import TIMEOUT_S, finish, kill_and_resume, must_end_alike, run, start

from opd.data.toy.task import DATA_SOURCE, split_problems, write_parquet
from opd.evaluation.pass_rates import WEIGHTS_KEY, PassRate, prompt_id, write_pass_rates
from opd.evaluation.samples import Sample, write_generations
from opd.trainer.token_log import file_key

_STEPS = 8
_SETS = (f"trainer.total_steps={_STEPS}", "trainer.save_freq=2", "data.max_train_samples=48", "trainer.total_epochs=9")
# Step 1 has forward KL on the teacher's answers. The others have reverse KL on the student's own, of 4 tokens at most. Half of
# the tokens are chosen, by scores of all. Prompts weigh by the pass rates of a file.
_STAGES = (
    "opd.stages=[{until: 0.125, loss_type: forward_kl, rollouts: teacher}, {}]",
    "opd.horizon.tokens=4",
    "opd.horizon.applies=generate",
    "actor.lr_schedule=cosine",
    "opd.importance.tokens.score=soft_or",
    "opd.importance.problems.weights=competence",
    "opd.importance.problems.drop=false",
    "rollout.logprobs_every=3",
)


def _teacher_answers(path: Path) -> str:
    """Two answers to each training problem, in the file that an evaluation of a teacher leaves; half of them are wrong."""
    answers = [
        Sample(
            run_id="teacher", step=0, data_source=DATA_SOURCE, problem_index=problem.pair_index, sample_index=number,
            prompt=problem.question, response=response, pred=response, ground_truth=problem.answer, score=0.0, acc=0.0,
            failed=False, num_tokens=4, truncated=False,
        )
        for problem in split_problems().train
        for number, response in enumerate((problem.answer, problem.answer_without_carries))
    ]  # fmt: skip
    write_generations(path, answers)
    return f"opd.teacher_answers={path}"


def _pass_rates(path: Path) -> str:
    """A rate for each training problem, as kind passrate writes them."""
    train, _ = write_parquet(path.parent / "toy", seed=3)
    prompts = [(row["prompt"], row["reward_model"]["ground_truth"]) for row in pq.read_table(train).to_pylist()]
    rates = [PassRate(prompt_id(*prompt), (1 + row % 7) / 8, 8, "toy://student") for row, prompt in enumerate(prompts)]
    write_pass_rates(path, rates)
    return f"opd.importance.problems.pass_rates={path}"


def test_kill_9_and_resume_ends_in_the_uninterrupted_runs_weights_bit_for_bit(tmp_path):
    # The original restarts its epochs at 0 and its file logger wipes the history (defect 14).
    answers, rates = _teacher_answers(tmp_path / "generations.parquet"), _pass_rates(tmp_path / "pass_rates.parquet")
    sets = (*_SETS, *_STAGES, answers, rates)
    whole = run(tmp_path / "whole", "opd", *sets).must_be_clean()
    resumed = kill_and_resume(tmp_path / "killed", "opd", *sets, behind=2)
    assert [row["training/global_step"] for row in resumed.steps] == list(range(1, _STEPS + 1))
    assert [row["training/epoch"] for row in resumed.steps] == [row["training/epoch"] for row in whole.steps]
    for mine, theirs in zip(resumed.steps, whole.steps, strict=True):
        for name in ("opd/loss", "opd/num_tokens", "opd/problem_weight_mean", "opd/problem_weight_max"):
            assert mine[name] == theirs[name], name
    kept, theirs = (pq.read_table(of.run_dir / WEIGHTS_KEY) for of in (resumed, whole))
    assert kept.equals(theirs)
    assert sum(kept["weight"].to_pylist()) == pytest.approx(len(kept))
    assert len(kept) == 48
    assert all(row["opd/importance/selected"] < 0.6 for row in whole.steps)
    kept_tokens = [json.loads((whole.run_dir / file_key(step)).read_bytes()) for step in (1, 2)]
    assert [step["divergence"] for step in kept_tokens] == ["forward_kl", "reverse_kl"], "of the step's own stage"
    assert [row["opd/stage"] for row in whole.steps] == [1] + [2] * (_STEPS - 1)
    for outcome in (whole, resumed):
        compared = [row for row in outcome.steps if "training/rollout_probs_diff_max" in row]
        steps = [row["training/global_step"] for row in compared]
        assert steps == [4, 7], "every third from the first step on, in which nobody sampled the teacher's answers here"
        assert all(row["training/rollout_probs_diff_max"] < 1e-4 for row in compared)
    assert max(row["response_length/max"] for row in whole.steps) == 4
    cosine = [1.5e-4 * (1 + math.cos(math.pi * made / _STEPS)) for made in range(1, _STEPS + 1)]  # of the next step
    assert [row["opd/lr"] for row in whole.steps] == pytest.approx(cosine, abs=1e-9)
    must_end_alike(resumed, whole, _STEPS)


def test_a_run_that_is_asked_to_end_saves_its_step_and_loses_none(tmp_path):
    sets = ("trainer.total_steps=40", "trainer.save_freq=30")
    process = start(tmp_path, "opd", *sets)
    metrics = tmp_path / "out" / "opd" / "attempts" / "0001" / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and len(metrics.read_text().splitlines()) > 2:  # the validation and two steps
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, tmp_path, "opd")
    assert stopped.returncode == 130, stopped.output[-4000:]
    last = stopped.steps[-1]["training/global_step"]
    assert 2 <= last < 40
    assert (stopped.run_dir / "checkpoints" / f"global_step_{last}" / "COMPLETE").exists()
    assert f"saved step {last}" in stopped.output

    resumed = run(tmp_path, "opd", *sets, f"trainer.total_steps={last + 1}").must_be_clean()
    assert f"resuming from step {last}" in resumed.output
    assert [row["training/global_step"] for row in resumed.steps] == list(range(1, last + 2))
