"""A training run's prompts get their weights by what they say, and those of weight 0 leave without changing the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import tensor
from transformers import AutoTokenizer
from verl.trainer.ppo.v1 import trainer_base

from opd.cluster.shutdown import GracefulStop
from opd.config import SpecError, parse_tree
from opd.config.algorithm import Horizon, ProblemImportance, Stage
from opd.data.toy import STUDENT_DIR
from opd.errors import CheckpointError
from opd.evaluation.pass_rates import PassRate, prompt_id, weights_key, write_pass_rates
from opd.evaluation.samples import Sample
from opd.importance import Schedule
from opd.pods import stop
from opd.rollout.manager import RolloutManager
from opd.rollout.worker import ONLY_SCORED, RolloutReport
from opd.runs.manifest import FileEntry, Manifest
from opd.runs.progress import PROGRESS
from opd.runs.run import EXIT_TERMINATED
from opd.store.local import LocalStore
from opd.trainer import distillation as trainers
from opd.trainer.dataset import PromptDataset
from opd.trainer.measured_rates import UNFINISHED_KEY, Measuring
from opd.trainer.problem_weights import ProblemWeights, problem_weights
from opd.trainer.stages import Stages
from opd.worker.checkpointing import Sealing

QUESTIONS = ["10+10=", "11+11=", "12+12=", "13+13="]
RATES = [0.0, 0.25, 0.5, 1.0]  # p (1 - p): 0, 3/16, 4/16, 0, with a mean of 7/64


def _message(question: str) -> list[dict]:
    return [{"role": "user", "content": question}]


@pytest.fixture
def dataset(tmp_path) -> PromptDataset:
    rows = [
        {"data_source": "toy_add", "prompt": _message(question), "reward_model": {"ground_truth": "9"}}
        for question in QUESTIONS
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    config = OmegaConf.create({"max_prompt_length": 16, "prompt_key": "prompt"})
    return PromptDataset([str(tmp_path / "train.parquet")], AutoTokenizer.from_pretrained(STUDENT_DIR), config)


def _problems(tmp_path, rates=None, **keys) -> ProblemImportance:
    """The section, with a file of these rates, written in the opposite order."""
    path = tmp_path / "pass_rates.parquet"
    rates = dict(zip(QUESTIONS, RATES, strict=True)) if rates is None else rates
    rows = [PassRate(prompt_id(_message(question), "9"), rate, 4, "m") for question, rate in rates.items()]
    write_pass_rates(path, reversed(rows))
    return ProblemImportance(**{"weights": "competence", "pass_rates": str(path)} | keys)


def test_each_prompt_gets_its_weight_whatever_the_order_of_the_file(dataset, tmp_path):
    weights = ProblemWeights(dataset, _problems(tmp_path, drop=False))
    torch.testing.assert_close(weights.of_rows(range(4)), tensor([0, 12 / 7, 16 / 7, 0]))
    assert len(dataset) == 4


def test_prompts_of_weight_0_leave_the_data_and_the_others_weigh_what_they_did(dataset, tmp_path):
    weights = ProblemWeights(dataset, _problems(tmp_path)).of_rows([0, 1])
    torch.testing.assert_close(weights, tensor([12 / 7, 16 / 7]))
    assert float(weights.sum()) / len(QUESTIONS) == pytest.approx(1.0)
    assert [row["raw_prompt"][0]["content"] for row in dataset] == QUESTIONS[1:3]
    assert [row["index"] for row in dataset] == [0, 1]
    assert (dataset.places, dataset.num_left_out) == ([1, 2], 2)


@pytest.mark.parametrize(
    ("keys", "shares"),
    [
        ({"weights": "hard_filter"}, [0, 1, 1, 1, 0]),
        ({"alpha": 0.0, "beta": 1.0}, [4, 3, 2, 1, 0]),
        # Of 1/4, 1/2 and 3/4 the mean is 1/2 and the variance 1/24, so s = 5: (p (1 - p)) ** 1.5.
        ({"weights": "moment_matched"}, [0, 3**1.5, 4**1.5, 3**1.5, 0]),
    ],
)
def test_each_way_to_weigh_has_a_mean_of_1(keys, shares):
    rates = [PassRate(str(i), i / 4, 4, "m") for i in range(5)]
    section = ProblemImportance(**{"weights": "competence", "pass_rates": "p.parquet"} | keys)
    by_hand = tensor(shares, dtype=torch.float64)
    torch.testing.assert_close(problem_weights(rates, section), by_hand / by_hand.mean())


def test_prompts_without_a_pass_rate_are_counted_and_named(dataset, tmp_path):
    with pytest.raises(SpecError) as caught:
        ProblemWeights(dataset, _problems(tmp_path, {"11+11=": 0.5, "99+99=": 0.5}))
    [problem] = caught.value.problems
    assert problem.path == "opd.importance.problems.pass_rates"
    assert problem.value == str(tmp_path / "pass_rates.parquet")
    assert (
        "3 of 4 training prompts have no pass rate in it (rows 0, 2, 3, counted from 0; it has 2 prompts)"
        in problem.rule
    )
    assert "kind passrate" in problem.fix


AGAIN = {"drop": False, "recompute": {"every": 3, "at_stages": True}}


def _measured(*rates: float) -> dict[str, PassRate]:
    ids = [prompt_id(_message(question), "9") for question in QUESTIONS]
    return {name: PassRate(name, rate, 49, "now") for name, rate in zip(ids, rates, strict=True)}


def test_rates_are_measured_again_after_every_n_steps_and_before_a_new_stage(dataset, tmp_path):
    weights = ProblemWeights(dataset, _problems(tmp_path, **AGAIN))
    schedule = Schedule(
        stages=(Stage(until=5), Stage()), ends=(5, 9), horizon=Horizon(), total_steps=9, response_length=8
    )
    assert [step for step in range(1, 10) if weights.are_due(step, schedule)] == [4, 6, 7]
    never = ProblemWeights(dataset, _problems(tmp_path, drop=False))
    assert not any(never.are_due(step, schedule) for step in range(1, 10))


def test_measured_rates_go_on_from_a_checkpoint_to_the_bit(dataset, tmp_path):
    weights, resumed = (ProblemWeights(dataset, _problems(tmp_path, **AGAIN)) for _ in range(2))
    # 1 / 49 times 49 is not 1 in floats: what is stored must be what was used.
    weights.use_measured(_measured(1 / 49, 0.5, 1.0, 48 / 49))
    weights.save(tmp_path)
    resumed.load(tmp_path)
    assert torch.equal(resumed.of_rows(range(4)), weights.of_rows(range(4)))
    by_hand = tensor([48 / 49**2, 1 / 4, 0.0, 48 / 49**2])
    torch.testing.assert_close(weights.of_rows(range(4)), by_hand / by_hand.mean())


def test_a_checkpoint_without_measured_rates_is_refused(dataset, tmp_path):
    with pytest.raises(CheckpointError, match=r"pass_rates\.parquet: it cannot be read"):
        ProblemWeights(dataset, _problems(tmp_path, **AGAIN)).load(tmp_path / "checkpoint")


def test_a_student_that_solves_everything_keeps_the_weights_that_it_had(dataset, tmp_path, caplog):
    weights = ProblemWeights(dataset, _problems(tmp_path, **AGAIN))
    before = weights.of_rows(range(4))
    weights.use_measured(_measured(1.0, 1.0, 1.0, 1.0))
    assert torch.equal(weights.of_rows(range(4)), before)
    assert "keep the weights that they had: pass_rate: no weight is above 0" in caplog.text
    assert weights.use_measured(_measured(0.5, 0.25, 0.5, 0.25), failed_share=0.05)


def test_rates_of_which_too_many_answers_failed_do_not_count(dataset, tmp_path, caplog):
    weights = ProblemWeights(dataset, _problems(tmp_path, **AGAIN))
    before = weights.of_rows(range(4))
    assert not weights.use_measured(_measured(0.5, 0.25, 0.0, 0.0), failed_share=0.5)
    assert torch.equal(weights.of_rows(range(4)), before)
    assert "50% of the answers failed" in caplog.text


def test_a_run_keeps_rates_and_weights_of_all_prompts_for_its_report(dataset, tmp_path):
    run = SimpleNamespace(local=LocalStore(tmp_path), remote=None, handle=SimpleNamespace(local_dir=str(tmp_path)))
    ProblemWeights(dataset, _problems(tmp_path), run).keep(step=1)
    kept = pq.read_table(tmp_path / weights_key(1)).to_pydict()
    assert kept["pass_rate"] == RATES
    assert kept["weight"] == pytest.approx([0, 12 / 7, 16 / 7, 0])


def _spec(*, num_samples: int, batch_size: int):
    recompute = {"every": 3, "num_samples": num_samples}
    problems = {"weights": "competence", "pass_rates": "p.parquet", "drop": False, "recompute": recompute}
    tree = {
        "kind": "opd",
        "model": {"path": "m"},
        "teacher": {"path": "t"},
        "data": {"train_batch_size": batch_size},
        "actor": {"ppo_mini_batch_size": 1, "use_dynamic_bsz": True},
        "trainer": {"gpus_per_node": 1},
    }
    return parse_tree(tree | {"opd": {"importance": {"problems": problems}}}).spec


class _Manager:
    """Answers each prompt as often as it is asked to; the sum's last digit says how many of the answers are right."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def generate_sequences(self, batch: TensorDict) -> None:
        self.asked.append([int(row) for row in batch["index"]])
        assert (batch["__rollout_n__"], batch[ONLY_SCORED], batch["global_steps"]) == (4, True, 7)

    def take_report(self) -> RolloutReport:
        return RolloutReport(
            samples=[
                Sample(
                    run_id="r", step=7, data_source="toy_add", problem_index=row, sample_index=number, prompt="", response="",
                    pred="", ground_truth="9", score=1.0, acc=1.0 if number < row else 0.5, failed=False, num_tokens=1,
                    truncated=False,
                )
                for row in self.asked[-1]
                for number in range(3)  # of the four answers one did not come
            ],
            num_failed=len(self.asked[-1]),
        )  # fmt: skip


def test_measuring_asks_every_prompt_and_draws_nothing_from_the_global_generators(dataset):
    manager, before = _Manager(), torch.get_rng_state()
    measuring = Measuring(_spec(num_samples=4, batch_size=3), dataset, step=7)
    measuring.measure(cast(RolloutManager, manager), between=lambda: None)
    found = measuring.rates("run/global_step_6")
    assert manager.asked == [[0, 1], [2, 3]]
    assert measuring.failed_share == 0.25
    assert [rate.pass_rate for rate in found.values()] == [0.0, 0.25, 0.5, 0.75]
    assert list(found) == dataset.prompt_ids()
    assert {(rate.k, rate.checkpoint) for rate in found.values()} == {(4, "run/global_step_6")}
    assert torch.equal(torch.get_rng_state(), before)


class _Cut(_Manager):
    """Of its second batch only the first prompt gets its answers, all four, and the other one half of them."""

    def take_report(self) -> RolloutReport:
        rows = self.asked[-1]
        samples = [
            Sample(
                run_id="r", step=7, data_source="toy_add", problem_index=row, sample_index=number, prompt="", response="",
                pred="", ground_truth="9", score=1.0, acc=1.0 if number < row else 0.5, failed=False, num_tokens=1,
                truncated=False,
            )
            for row in rows
            for number in range(2 if row == 3 else 4)
        ]  # fmt: skip
        return RolloutReport(samples=samples, num_cut=2 if 3 in rows else 0)


def _attempt(folder, *, attempt: int, step: int = 6) -> SimpleNamespace:
    """A run on a disk of its own, whose weights are the checkpoint of a step as an attempt saved it."""
    entry = FileEntry(path="data.pt", size=1, sha256="0" * 64, rank=-1)
    current = Manifest(step=step, attempt=attempt, spec_hash="s", files=(entry,))
    return SimpleNamespace(
        local=LocalStore(folder), remote=None, stores=[LocalStore(folder)], checkpoints=SimpleNamespace(current=current),
        handle=SimpleNamespace(local_dir=str(folder)),
    )  # fmt: skip


def _saved_when_cut(dataset, tmp_path) -> None:
    """A measuring before step 7 that is asked to end in its second batch."""

    def save() -> None:
        if manager.asked[-1] == [2, 3]:
            measuring.save()
            raise SystemExit

    manager = _Cut()
    measuring = Measuring(_spec(num_samples=4, batch_size=2), dataset, step=7, run=_attempt(tmp_path, attempt=1))
    with pytest.raises(SystemExit):
        measuring.measure(cast(RolloutManager, manager), between=save)


def test_a_measuring_that_was_asked_to_end_goes_on_with_the_prompts_that_lack_answers(dataset, tmp_path, capsys):
    _saved_when_cut(dataset, tmp_path)
    resumed = Measuring(_spec(num_samples=4, batch_size=2), dataset, step=7, run=_attempt(tmp_path, attempt=1))
    manager = _Manager()
    resumed.measure(cast(RolloutManager, manager), between=lambda: None)
    assert manager.asked == [[3]]
    assert "pass rates of 3 of 4 prompts are of an earlier attempt" in capsys.readouterr().out
    assert [rate.pass_rate for rate in resumed.rates("m").values()] == [0.0, 0.25, 0.5, 0.75]
    assert resumed.failed_share == 1 / 16, "of the last prompt's answers one did not come"


@pytest.mark.parametrize(
    "changed", [{"attempt": 2}, {"attempt": 1, "step": 5}], ids=["another save of the step", "other weights"]
)
def test_what_was_measured_with_other_weights_is_measured_again(dataset, tmp_path, changed):
    _saved_when_cut(dataset, tmp_path)
    manager = _Manager()
    Measuring(_spec(num_samples=4, batch_size=2), dataset, step=7, run=_attempt(tmp_path, **changed)).measure(
        cast(RolloutManager, manager), between=lambda: None
    )
    assert manager.asked == [[0, 1], [2, 3]]


def test_a_damaged_file_of_what_was_measured_is_measured_again(dataset, tmp_path, caplog):
    _saved_when_cut(dataset, tmp_path)
    (tmp_path / UNFINISHED_KEY).write_text('{"weights"')
    manager = _Manager()
    run = _attempt(tmp_path, attempt=1)
    Measuring(_spec(num_samples=4, batch_size=2), dataset, step=7, run=run).measure(
        cast(RolloutManager, manager), between=lambda: None
    )
    assert manager.asked == [[0, 1], [2, 3]]
    assert f"{UNFINISHED_KEY} of " in caplog.text


def test_what_was_measured_is_not_saved_without_the_checkpoint_of_its_weights(dataset, tmp_path):
    run = _attempt(tmp_path, attempt=1, step=3)
    Measuring(_spec(num_samples=4, batch_size=2), dataset, step=7, run=run).save()
    assert not (tmp_path / UNFINISHED_KEY).exists()


class _Interrupted:
    """Answers nothing, and of four batches asks for something in the second."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.num_batches, self._ask = 0, ask

    def generate_sequences(self, batch: TensorDict) -> None:
        self.num_batches += 1
        if self.num_batches == 2:
            self._ask()

    def take_report(self) -> RolloutReport:
        return RolloutReport()


def _before_step_4(monkeypatch, tmp_path, dataset, ask: Callable[[], None]) -> trainers.OPDTrainer:
    """A trainer that measures before this step; `saved` is which steps it has saved, `claim` what it said of its attempt."""
    spec = _spec(num_samples=8, batch_size=1)
    monkeypatch.setattr(trainers.OPDTrainer, "_spec", spec)
    trainer = object.__new__(trainers.OPDTrainer)
    trainer.ours = SimpleNamespace(spec=spec, checkpoint=spec.checkpoint, run=SimpleNamespace(run_id="r"))
    trainer.config = OmegaConf.create({"trainer": {"save_freq": 2}})
    trainer.saved, trainer.claim = [], []
    trainer.run = SimpleNamespace(
        checkpoints=SimpleNamespace(current=None),
        local=LocalStore(tmp_path), remote=None, stores=[LocalStore(tmp_path)],
        handle=SimpleNamespace(local_dir=str(tmp_path), attempt=1),
        asked_in=tmp_path, hand_over=lambda: trainer.claim.append("stopped"), take_back=lambda: trainer.claim.append("goes on"),
    )  # fmt: skip
    trainer.train_dataset, trainer.agent_loop_manager = dataset, _Interrupted(ask)
    trainer.global_steps, trainer.total_training_steps, trainer.timing_raw = 4, 8, {}
    trainer._stop, trainer._saved_step, trainer._unsealed_step = GracefulStop(), 2, None
    trainer._sealing = Sealing()
    trainer.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None)
    monkeypatch.setattr(trainer, "on_step_end", lambda: None)
    trainer._problem_weights = ProblemWeights(dataset, _problems(tmp_path, **AGAIN), trainer.run)
    trainer._stages = Stages(spec, dataset, dataset.tokenizer, total_steps=8)
    monkeypatch.setattr(trainer, "_save_checkpoint", lambda: trainer.saved.append(trainer.global_steps))
    return trainer


def test_sigterm_while_the_rates_are_measured_saves_the_step_before_and_ends(monkeypatch, dataset, tmp_path, capfd):
    trainer = _before_step_4(monkeypatch, tmp_path, dataset, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with trainer._stop, pytest.raises(SystemExit) as ended:
        trainer._weigh_again()
    assert ended.value.code == EXIT_TERMINATED
    assert trainer.agent_loop_manager.num_batches == 2, "the batch that was being answered is the last"
    assert trainer.saved == [3]
    assert "saved step 3; the same command goes on from here" in capfd.readouterr().out
    assert not (tmp_path / weights_key(4)).exists(), "rates of a part of the prompts count for nothing"


def test_a_pod_that_has_to_go_while_the_rates_are_measured_gets_its_save_and_the_measuring_goes_on(
    monkeypatch, dataset, tmp_path
):
    asked: list[stop.Request] = []
    ask = lambda: asked.append(stop.ask(tmp_path, reason="test", hold_s=0))  # noqa: E731
    trainer = _before_step_4(monkeypatch, tmp_path, dataset, ask)
    metrics = trainer._weigh_again()
    assert trainer.saved == [3]
    stop.sign_of_life(tmp_path)
    assert stop.wait(tmp_path, asked[0], timeout_s=5) == 3
    assert trainer.claim == ["stopped", "goes on"]
    assert (trainer.agent_loop_manager.num_batches, trainer.global_steps) == (4, 4)
    assert metrics["opd/pass_rate_mean"] == 0.0
    standing = PROGRESS.read()
    assert standing is not None
    assert (standing.phase, standing.step) == ("pass rates", 4)


def test_rates_that_give_no_prompt_a_weight_are_a_fault_of_the_file(dataset, tmp_path):
    with pytest.raises(SpecError, match="no weight is above 0 among 4 problems"):
        ProblemWeights(dataset, _problems(tmp_path, dict.fromkeys(QUESTIONS, 1.0)))


class _Queue:
    """What the trainer asks of the transfer queue for a step's rows, and what it gave it."""

    def __init__(self, rewards: list[float]) -> None:
        self._rewards = rewards
        self.put: TensorDict | None = None

    def kv_batch_get(self, **_):
        uids = [f"prompt {i // 2}" for i in range(len(self._rewards))]
        return {"uid": uids, "rm_scores": torch.nested.nested_tensor([[reward] for reward in self._rewards])}

    def kv_batch_put(self, *, fields, **_):
        self.put = fields


LOADERS = {
    "data": {
        "train_files": "train", "val_files": "val", "train_batch_size": 2, "val_batch_size": 2, "dataloader_num_workers": 0,
        "shuffle": False, "max_prompt_length": 16,
    },
    "algorithm": {},
    "actor_rollout_ref": {"actor": {"optim": {}}},
    "trainer": {"v1": {"sampler": {}}, "total_epochs": 1, "total_training_steps": 2},
}  # fmt: skip


def _weigh_step(monkeypatch, dataset, problems, reward_beta) -> tuple[torch.Tensor, dict]:
    """A step of two rows of data row 1, then two of data row 0, through the trainer's own hooks."""
    spec = parse_tree(
        {
            "kind": "opd",
            "model": {"path": "m"},
            "teacher": {"path": "t"},
            "rollout": {"num_samples": 2},
            "opd": {"importance": {"problems": problems}, "horizon": {"tokens": 3}}
            | ({"reward_beta": reward_beta} if reward_beta else {}),
        }
    ).spec
    monkeypatch.setattr(trainers.OPDTrainer, "_spec", spec)
    monkeypatch.setattr(trainer_base, "create_rl_dataset", lambda *args, is_train=True, **kwargs: dataset)
    trainer = object.__new__(trainers.OPDTrainer)
    trainer.run, trainer.tokenizer, trainer.processor, trainer.trainer_mode = None, dataset.tokenizer, None, "sync"
    trainer.ours = SimpleNamespace(spec=spec)
    trainer.config, trainer.parameter_sync_step = OmegaConf.create(LOADERS), 1
    trainer._init_dataloader()  # the second data set is not weighed: it would lose rows again
    assert trainer._stages.schedule.num_tokens(1) == 3, "the same call makes the schedule of the steps"
    queue = _Queue([1.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr(trainers, "tq", queue)
    batch = type("Batch", (), {"keys": list("abcd"), "partition_id": "train"})()
    batch.tags = [{"order": (row, sample, 0)} for row in (1, 0) for sample in (0, 1)]
    metrics: dict[str, float] = {}
    trainer._put_row_facts(batch, metrics)
    assert queue.put is not None
    return queue.put["sample_weights"], metrics


def test_a_rollouts_weight_is_that_of_its_prompt(monkeypatch, dataset, tmp_path):
    problems = {"weights": "competence", "pass_rates": _problems(tmp_path).pass_rates}
    weights, metrics = _weigh_step(monkeypatch, dataset, problems, None)
    torch.testing.assert_close(weights, tensor([16 / 7, 16 / 7, 12 / 7, 12 / 7]))
    assert metrics["opd/problem_weight_mean"] == pytest.approx(2.0)
    assert metrics["opd/problem_weight_max"] == pytest.approx(16 / 7)
    assert metrics["opd/reward_weight_max"] == 1.0


def test_a_rollouts_weights_by_prompt_and_by_reward_are_multiplied(monkeypatch, dataset, tmp_path):
    problems = {"weights": "competence", "pass_rates": _problems(tmp_path).pass_rates}
    weights, metrics = _weigh_step(monkeypatch, dataset, problems, 1.0)
    share = 1 / (1 + torch.e**-1)  # of a reward of 1 beside one of 0
    by_hand = tensor([16 / 7 * 2 * share, 16 / 7 * 2 * (1 - share), 12 / 7, 12 / 7])
    torch.testing.assert_close(weights, by_hand)
    assert metrics["opd/reward_weight_max"] == pytest.approx(2 * share)


def test_without_weights_a_step_is_what_it_was(monkeypatch, dataset):
    weights, metrics = _weigh_step(monkeypatch, dataset, {"weights": "none"}, None)
    assert torch.equal(weights, torch.ones(4))
    assert metrics.keys() == {"opd/reward_weight_max", "opd/reward_weight_min"}
    assert len(dataset) == 4
