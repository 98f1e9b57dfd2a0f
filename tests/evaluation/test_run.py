"""Answers that an evaluation keeps, and prompts that its later attempts ask."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from opd.cluster.shutdown import GracefulStop
from opd.errors import StoreError
from opd.evaluation import run as evaluation
from opd.evaluation.pass_rates import PassRate, read_pass_rates
from opd.evaluation.problems import Problem
from opd.evaluation.results import as_metrics, as_record
from opd.evaluation.run import Answers
from opd.evaluation.samples import Sample, read_generations, write_generations
from opd.experiment import parse_tree
from opd.pods import stop
from opd.rollout.batches import RolloutReport
from opd.rollout.rows import IDS, LOG_PROBS
from opd.store.local import LocalStore

SPEC = {"kind": "passrate", "model": {"path": "hub/m"}, "rollout": {"val": {"num_samples": 2}}}
RIGHT = {0: [1.0, 0.0], 1: [1.0, 1.0], 2: [0.0, 0.0]}  # of each row's two answers
STORED = "store/eval/generations.parquet"


def _answers(row: int, **changes) -> list[Sample]:
    """Return the answers to a row as a rollout reports them, which names the problem by the row."""
    named = {
        "run_id": "r", "step": 0, "data_source": "math", "problem_index": row, "prompt": "?", "response": "!", "pred": "",
        "ground_truth": "7", "failed": False, "num_tokens": 1, "truncated": False,
    }  # fmt: skip
    return [
        Sample(**named | {"sample_index": number, "score": acc, "acc": acc} | changes)
        for number, acc in enumerate(RIGHT[row])
    ]


def _report(*rows: int, **changes) -> RolloutReport:
    samples = [answer for row in rows for answer in _answers(row, **changes)]
    return RolloutReport(samples=samples, num_trajectories=2 * len(rows))


class _Manager:
    """A rollout manager that answers each row, except those that it cuts."""

    def __init__(self, cut: tuple[int, ...] = ()):
        self._cut, self.asked = cut, []

    def __call__(self, *_) -> _Manager:
        return self

    def generate(self, rows: list[int], stopping: GracefulStop) -> RolloutReport:
        self.asked += rows
        report = _report(*(row for row in rows if row not in self._cut))
        report.num_cut, report.num_trajectories = sum(row in self._cut for row in rows), 2 * len(rows)
        return report


@pytest.fixture
def attempt(tmp_path):
    """Start an attempt of a run with a disk of its own and a common store: (run, questions, answers)."""
    questions = SimpleNamespace(
        problems=[Problem("math", 10 - row) for row in range(3)], num_samples=2, num_dropped={}, batch_size=1,
        batch=list, dataset=SimpleNamespace(prompt_ids=lambda: ["a", "b", "c"]),
    )  # fmt: skip

    def start(number: int, **eval_keys) -> SimpleNamespace:
        local, remote = (LocalStore(tmp_path / name) for name in (f"disk {number}", "store"))
        run = SimpleNamespace(
            attempt=number, attempt_dir=local.root / "attempt", local=local,
            stores=(remote, local), remote=remote, asked_in=local.root,
            hand_over=lambda **_: None, storing_the_end=lambda: GracefulStop(),
        )  # fmt: skip
        answers = Answers(run, questions, parse_tree(SPEC | {"eval": eval_keys}).spec)
        return SimpleNamespace(run=run, questions=questions, answers=answers)

    return start


@pytest.fixture
def ask(monkeypatch):
    """Ask an attempt's rows of a manager; return whether all of them were answered."""
    serving = SimpleNamespace(client=None, devices=["CPU"])
    monkeypatch.setattr(evaluation, "start_servers", lambda config: serving)
    monkeypatch.setattr(evaluation.RunConfig, "of", lambda config: SimpleNamespace(agent=None))
    monkeypatch.setattr(evaluation, "keep_trajectories", lambda *_: None)

    def asking(of: SimpleNamespace, manager: _Manager, *, is_stopped: bool = False) -> bool:
        monkeypatch.setattr(evaluation, "RolloutManager", manager)
        asked_to_end = GracefulStop()
        asked_to_end.requested = is_stopped
        trackers = SimpleNamespace(links={})
        return evaluation._ask(None, of.run, of.questions, of.answers, trackers, asked_to_end)[1] is None

    return asking


def test_an_attempt_on_another_disk_asks_what_is_not_in_the_store_and_ends_in_the_same_numbers(attempt, ask, tmp_path):
    killed = attempt(1)
    killed.answers.keep(_report(0, numbers={"plan": 1.0}))
    killed.answers.keep(_report(2))
    resumed, manager = attempt(2), _Manager()
    assert ask(resumed, manager)
    assert manager.asked == [1]
    [result] = resumed.answers.results(0.0)
    assert as_metrics([result])["val-core/math/acc/mean@2"] == pytest.approx(0.5)
    record = as_record(result)
    assert (record["means"]["plan/mean"], record["standard_errors"]["plan/mean"]) == (1.0, None)
    assert record["num_answers"] == {"plan": 2}
    resumed.answers.store_the_end()
    rates = {name: PassRate(name, rate, 2, "hub/m") for name, rate in (("a", 0.5), ("b", 1.0), ("c", 0.0))}
    assert read_pass_rates(tmp_path / "store/eval/pass_rates.parquet") == rates
    assert len(read_generations((tmp_path / STORED).read_bytes())) == 6


def test_rows_that_repeat_a_prompt_are_further_answers_to_its_problem(attempt, ask, tmp_path):
    first = attempt(1)
    first.questions.problems[:] = [Problem("math", 10)] * 2 + [Problem("math", 8)]
    again = attempt(1)
    assert ask(again, _Manager())
    [result] = again.answers.results(0.0)
    assert (result.num_problems, result.num_samples) == (2, 2)
    assert result.mean.value == pytest.approx((3 / 4 + 0) / 2)
    assert [(rate.k, rate.pass_rate) for rate in again.answers.pass_rates()] == [(4, 0.75), (2, 0.0)]
    assert attempt(2).answers.rows_to_ask() == []


def test_a_prompt_with_an_answer_that_is_missing_or_was_not_scored_is_asked_again_as_a_whole(attempt, tmp_path):
    stored = [replace(answer, problem_index=10 - row) for row in range(3) for answer in _answers(row)]
    stored[0] = replace(stored[0], failed=True)  # of row 0
    write_generations(tmp_path / STORED, stored[:5])  # one of row 2 never came
    resumed = attempt(2).answers
    assert resumed.rows_to_ask() == [0, 2]
    resumed.keep(_report(0, 2))
    assert [rate.pass_rate for rate in resumed.pass_rates()] == [0.5, 1.0, 0.0]


def test_answers_in_a_file_that_cannot_be_read_are_asked_for_again(attempt, tmp_path):
    attempt(1).answers.keep(_report(0, 1))
    (tmp_path / STORED).write_bytes(b"PAR1")
    assert attempt(2).answers.rows_to_ask() == [0, 1, 2]


@pytest.mark.parametrize(("cut", "asked", "left"), [((), [0], [1, 2]), ((0,), [0], [0, 1, 2])])
def test_an_attempt_that_is_asked_to_end_does_so_after_its_batch_and_the_next_asks_the_others(
    attempt, ask, cut, asked, left
):
    manager = _Manager(cut)
    assert not ask(attempt(1), manager, is_stopped=True)
    assert manager.asked == asked
    assert attempt(2).answers.rows_to_ask() == left


def test_an_attempt_that_is_asked_to_end_when_all_is_answered_comes_to_its_end(attempt, ask):
    of = attempt(1)
    of.questions.batch_size = 3
    assert ask(of, _Manager(), is_stopped=True)


def test_a_pod_that_has_to_go_hears_that_the_answers_are_stored(attempt, ask, tmp_path):
    asked = stop.ask(folder := tmp_path / "disk 1", hold_s=0)
    assert ask(attempt(1), _Manager())
    stop.sign_of_life(folder)
    assert stop.wait(folder, asked, timeout_s=5) == 0


@pytest.mark.parametrize(("keeps", "text"), [(True, "!"), (False, "")])
def test_texts_are_kept_where_the_spec_says_so_and_scores_always(attempt, tmp_path, keeps, text):
    attempt(1, save_generations=keeps).answers.keep(_report(0))
    kept = read_generations((tmp_path / "disk 1/eval/generations.parquet").read_bytes())
    assert [(one.response, one.acc, one.problem_index) for one in kept] == [(text, 1.0, 10), (text, 0.0, 10)]


def test_the_answers_of_a_served_teacher_end_in_one_file_with_its_events(attempt, ask, tmp_path, monkeypatch):
    monkeypatch.setitem(SPEC, "teacher", {"path": "t", "url": "http://t/v1"})

    def refuse(*_) -> None:
        raise StoreError("it is down")

    def keep(found: Answers, *rows: int) -> Answers:
        report, pairs = _report(*rows), [(row, sample) for row in rows for sample in range(2)]
        report.events = [(*pair, {IDS: torch.tensor([pair]), LOG_PROBS: -torch.ones(1, 2)}) for pair in pairs]
        found.keep(report)
        return found

    first = attempt(1, save_generations=True).answers
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_file", refuse)
        assert not keep(first, 1).are_stored
    assert keep(first, 0).are_stored, "a part that the store did not take comes with the next one"
    second = attempt(2, save_generations=True).answers
    assert second.rows_to_ask() == [2]
    keep(second, 2).store_the_end()
    rows = pq.read_table(tmp_path / STORED).to_pylist()
    assert len(rows) == 6
    for row in rows:
        assert (row[IDS], row[LOG_PROBS]) == ([10 - row["problem_index"], row["sample_index"]], [-1.0, -1.0])
    assert not (tmp_path / "store/eval/events").exists()
    manager = _Manager()
    assert ask(attempt(3, save_generations=True), manager)
    assert manager.asked == [], "an attempt that finds all answers starts no server"


def test_pass_rates_name_the_checkpoint_that_was_asked(attempt):
    answers = attempt(1, checkpoint="s3://b/r/checkpoints/global_step_5").answers
    assert {rate.checkpoint for rate in answers.pass_rates()} == {"s3://b/r/checkpoints/global_step_5"}
