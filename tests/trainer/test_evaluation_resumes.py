"""An evaluation that is started again asks only what an earlier attempt has not stored, and ends in the same numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader

from opd.cluster.shutdown import GracefulStop
from opd.config import parse_tree
from opd.evaluation.pass_rates import PassRate
from opd.evaluation.problems import Problem
from opd.evaluation.samples import Sample, read_generations, write_generations
from opd.pods import stop
from opd.rollout.worker import RolloutReport
from opd.runs.run import EXIT_TERMINATED
from opd.store.local import LocalStore
from opd.trainer import evaluation
from opd.trainer.evaluation import EvalTrainer
from opd.trainer.trainer import OrderedTrainer
from opd.worker.checkpointing import Sealing
from opd.worker.nonfinite import SkippedUpdates

SPEC = {"kind": "passrate", "model": {"path": "hub/m"}, "rollout": {"val": {"num_samples": 2}}}
RIGHT = {0: [1.0, 0.0], 1: [1.0, 1.0], 2: [0.0, 0.0]}  # of each data row's two answers


class _Prompts(list):
    """Three data rows of one file, whose own indices run the other way."""

    places = (0, 1, 2)
    dropped_places = ()

    def name_problems(self) -> list[Problem]:
        return [Problem("math", 10 - row) for row in range(3)]

    def prompt_ids(self) -> list[str]:
        return ["a", "b", "c"]


def _answers(row: int, **changes) -> list[Sample]:
    """As a rollout reports them: named by the data row."""
    return [
        Sample(
            **{
                "run_id": "r", "step": 0, "data_source": "math", "problem_index": row, "sample_index": number, "prompt": "?",
                "response": "!", "pred": "", "ground_truth": "7", "score": acc, "acc": acc, "failed": False, "num_tokens": 1,
                "truncated": False,
            }
            | changes
        )
        for number, acc in enumerate(RIGHT[row])
    ]  # fmt: skip


@pytest.fixture
def attempt(monkeypatch, tmp_path):
    """A started attempt of a run in two places, as far as its data loader."""

    def load(trainer):
        trainer.val_dataset = _Prompts(range(3))
        trainer.val_dataloader = StatefulDataLoader(trainer.val_dataset, batch_size=1, collate_fn=list)

    monkeypatch.setattr(OrderedTrainer, "_init_dataloader", load)
    monkeypatch.setattr(evaluation, "reward_function", lambda config: "math_reward")

    def start(number: int, **eval_keys) -> EvalTrainer:
        trainer = object.__new__(EvalTrainer)
        trainer.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"val_kwargs": {"n": 2}}}})
        trainer.ours = SimpleNamespace(spec=parse_tree(SPEC | {"eval": eval_keys}).spec)
        local, remote = (LocalStore(tmp_path / name) for name in (f"disk {number}", "store"))
        handle = SimpleNamespace(attempt=number, local_dir=str(local.root), run_id="r")
        trainer.run = SimpleNamespace(
            handle=handle, stores=(remote, local), remote=remote,
            asked_in=local.root, hand_over=lambda: None, take_back=lambda: None,
        )  # fmt: skip
        trainer._not_uploaded, trainer._unsealed_step, trainer._stop = set(), None, GracefulStop()
        trainer._sealing, trainer._saved_step = Sealing(), None
        trainer.global_steps, trainer.total_training_steps = 0, 1
        trainer._skipped = SkippedUpdates(0)
        trainer._init_dataloader()
        return trainer

    return start


def _answer(trainer: EvalTrainer, rows: list[int]) -> None:
    trainer._keep_answers(RolloutReport(samples=[answer for row in rows for answer in _answers(row)]))


def _asked(trainer: EvalTrainer) -> list[int]:
    return [row for batch in trainer.val_dataloader for row in batch]


def test_a_first_attempt_asks_everything(attempt):
    assert _asked(attempt(1)) == [0, 1, 2]


def test_an_attempt_on_another_disk_asks_what_is_not_in_the_store_and_ends_in_the_same_pass_rates(attempt, tmp_path):
    killed = attempt(1)
    _answer(killed, [0])
    _answer(killed, [2])
    resumed = attempt(2)
    assert _asked(resumed) == [1]
    _answer(resumed, [1])
    assert resumed._pass_rates() == [PassRate("a", 0.5, 2, "hub/m"), PassRate("b", 1.0, 2, "hub/m"), PassRate("c", 0.0, 2, "hub/m")]  # fmt: skip
    metrics = resumed._val_metrics_update()
    assert metrics["val-core/math/acc/mean@2"] == pytest.approx(0.5)
    assert len(read_generations(tmp_path / "store" / "eval" / "generations.parquet")) == 6


def test_an_attempt_keeps_the_further_numbers_of_an_earlier_one(attempt):
    killed = attempt(1)
    killed._keep_answers(RolloutReport(samples=[*_answers(0, numbers={"plan": 1.0}), *_answers(2)]))
    resumed = attempt(2)
    assert _asked(resumed) == [1]
    resumed._keep_answers(RolloutReport(samples=_answers(1, numbers={"plan": 0.5})))
    metrics = resumed._val_metrics_update()
    assert metrics["val-aux/math/plan/mean@2"] == pytest.approx(0.75)
    told = {"plan": {"mean": 0.75, "standard_error": pytest.approx(0.25), "num_answers": 4}}
    assert resumed.outcome()["eval"]["math"]["numbers"] == told


def test_an_attempt_that_finds_all_answers_asks_none(attempt):
    _answer(attempt(1), [0, 1, 2])
    resumed = attempt(2)
    assert _asked(resumed) == []
    assert resumed._val_metrics_update()["val-core/math/acc/mean@2"] == pytest.approx(0.5)


def test_a_prompt_with_an_answer_that_is_missing_or_was_not_scored_is_asked_again_as_a_whole(attempt, tmp_path):
    stored = [replace(answer, problem_index=10 - row) for row in range(3) for answer in _answers(row)]
    stored[0] = replace(stored[0], failed=True)  # of row 0
    write_generations(tmp_path / "store" / "eval" / "generations.parquet", stored[:5])  # one of row 2 never came
    resumed = attempt(2)
    assert _asked(resumed) == [0, 2]
    _answer(resumed, [0, 2])
    assert [rate.pass_rate for rate in resumed._pass_rates()] == [0.5, 1.0, 0.0]


def test_answers_in_a_file_that_cannot_be_read_are_asked_for_again(attempt, tmp_path):
    _answer(attempt(1), [0, 1])
    (tmp_path / "store" / "eval" / "generations.parquet").write_bytes(b"PAR1")
    assert _asked(attempt(2)) == [0, 1, 2]


def test_an_attempt_that_is_asked_to_end_does_so_after_its_batch_and_the_next_asks_the_others(attempt, capsys):
    trainer = attempt(1)
    trainer._stop.requested = True
    with pytest.raises(SystemExit) as ended:
        trainer._on_report(RolloutReport(num_trajectories=4, num_cut=1, samples=[*_answers(2), *_answers(1)[:1]]))
    assert ended.value.code == EXIT_TERMINATED
    assert "stored 3 answers; the same command goes on from here" in capsys.readouterr().out
    assert _asked(attempt(2)) == [0, 1]


def test_an_attempt_that_is_asked_to_end_when_all_is_answered_comes_to_its_end(attempt):
    trainer = attempt(1)
    trainer._stop.requested = True
    trainer._on_report(
        RolloutReport(num_trajectories=6, samples=[answer for row in range(3) for answer in _answers(row)])
    )
    trainer.on_step_logged()


def test_a_pod_that_has_to_go_hears_that_the_answers_are_stored(attempt, tmp_path):
    trainer = attempt(1)
    folder = tmp_path / "disk 1"
    asked = stop.ask(folder, reason="test", hold_s=0)
    trainer._on_report(RolloutReport(num_trajectories=2, samples=_answers(0)))
    stop.sign_of_life(folder)
    assert stop.wait(folder, asked, timeout_s=5) == 0


@pytest.mark.parametrize(("keeps", "text"), [(True, "!"), (False, "")])
def test_texts_are_kept_where_the_spec_says_so_and_scores_always(attempt, tmp_path, keeps, text):
    _answer(attempt(1, save_generations=keeps), [0])
    kept = read_generations(tmp_path / "disk 1" / "eval" / "generations.parquet")
    assert [(answer.response, answer.acc, answer.problem_index) for answer in kept] == [
        (text, 1.0, 10),
        (text, 0.0, 10),
    ]


def test_pass_rates_name_the_checkpoint_that_was_asked(attempt):
    trainer = attempt(1, checkpoint="s3://b/r/checkpoints/global_step_5")
    _answer(trainer, [0, 1, 2])
    assert {rate.checkpoint for rate in trainer._pass_rates()} == {"s3://b/r/checkpoints/global_step_5"}
