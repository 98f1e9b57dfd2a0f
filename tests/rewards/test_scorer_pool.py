"""The killable pool: after any end of a scorer its answer keeps its row, and no process is left."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.processes import is_running
from tests.scoring import compute_score

from opd.isolation.pool import ProcessPool
from opd.rewards import Score
from opd.rewards.dispatch import new_pool, score_in
from opd.rewards.worker import Failure, ScoreTask

PATIENCE_S = 60.0
"""A deadline for what should be quick: only a hang can reach it."""
FAILED_ROW = {"score": 0.0, "acc": 0.0, "pred": "", "failed": 1}


def score(name: str, *, timeout_s: float = PATIENCE_S, solution: str = "7", truth: str = "7", **options):
    return compute_score(
        "toy", solution, truth, {"index": 3}, function=f"scorers_under_test:{name}", timeout_s=timeout_s, **options
    )


def task(name: str, truth: str = "7") -> ScoreTask:
    return ScoreTask(f"scorers_under_test:{name}", "toy", "7", truth, {"index": 3}, {})


def scored(pool: ProcessPool, asked: ScoreTask, *, timeout_s: float) -> Score | Failure:
    return asyncio.run(score_in(pool, asked, timeout_s))


@pytest.fixture
def pool():
    pool = new_pool()
    yield pool
    pool.close()


def wait_until(condition, timeout_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_data_source_and_extra_info_and_options_reach_the_function():
    row = compute_score(
        "aime24",
        "7",
        "7",
        {"index": 3, "num_turns": 2},
        function="scorers_under_test:echo",
        timeout_s=PATIENCE_S,
        bonus=0.25,
    )
    assert row == {"score": 1.25, "acc": 1.0, "pred": "aime24|3|2", "length": 1.0, "failed": 0}


@pytest.mark.parametrize("name", ["raises", "exits", "eats_memory", "not_a_number"])
def test_a_scorer_that_fails_scores_zero_and_keeps_its_row(name):
    assert score(name) == FAILED_ROW


@pytest.mark.parametrize("answer", ["hang", "exit", "raise"])
def test_a_failed_function_of_ones_own_scores_the_worst_that_it_declares(answer):
    row = score("declares_its_worst", solution=answer, timeout_s=0.5 if answer == "hang" else PATIENCE_S)
    assert row == {**FAILED_ROW, "score": -2.0}


def test_a_function_that_declares_nothing_fails_at_the_lowest_score_it_has_given():
    assert score("plus_or_minus", solution="x") == FAILED_ROW
    assert [score("plus_or_minus", solution=answer)["score"] for answer in ("8", "7")] == [-1.0, 1.0]
    assert score("plus_or_minus", solution="x") == {**FAILED_ROW, "score": -1.0}


def test_a_hanging_scorer_ends_at_its_deadline_and_its_process_is_reaped(pool, tmp_path):
    pid = int(scored(pool, task("process_id"), timeout_s=PATIENCE_S).pred)  # the idle one is taken up again
    started = time.monotonic()
    result = scored(pool, task("sleeps", truth=str(tmp_path / "pid")), timeout_s=0.5)
    assert result == Failure("no answer in 0.5 s")
    assert time.monotonic() - started < PATIENCE_S
    assert not Path(f"/proc/{pid}").exists()  # not even a zombie


def test_a_scorer_that_hangs_inside_c_code_is_killed_too(pool):
    assert scored(pool, task("regex_hang"), timeout_s=0.5) == Failure("no answer in 0.5 s")


def test_a_process_that_died_while_idle_costs_no_answer(pool):
    first = int(scored(pool, task("process_id"), timeout_s=PATIENCE_S).pred)
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: not is_running(first))
    second = int(scored(pool, task("process_id"), timeout_s=PATIENCE_S).pred)
    assert second != first


def test_close_ends_a_call_under_way(pool, tmp_path):
    pid_file = tmp_path / "pid"
    future = pool.submit(task("sleeps", truth=str(pid_file)), PATIENCE_S)
    assert wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    pool.close()
    with pytest.raises(RuntimeError, match="the score pool is closed"):
        future.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("function", "options", "error", "says"),
    [
        ("scorers_under_test:absent", {}, ImportError, "absent"),
        ("no_such_module:score", {}, ImportError, "no_such_module"),
        ("broken_on_import:score", {}, ImportError, "RuntimeError: no licence"),
        ("no_such_file.py:score", {}, ImportError, "there is no Python file no_such_file.py"),
        ("scorers_under_test:NOT_A_FUNCTION", {}, TypeError, "not a function"),
        ("scorers_under_test:process_id", {"bonus": 1}, TypeError, "bonus"),
        ("math_verify", {"bonus": 1}, TypeError, "no option bonus"),
    ],
)
def test_a_wrong_configuration_is_raised_not_scored_and_costs_no_worker(function, options, error, says):
    for _ in range(3):  # more often than the pool has workers
        with pytest.raises(error, match=says):
            compute_score("toy", "7", "7", function=function, timeout_s=PATIENCE_S, **options)
    assert score("process_id")["score"] == 1.0


def test_an_extra_info_that_cannot_travel_is_raised_not_scored():
    with pytest.raises(TypeError, match="extra_info or ground truth cannot be pickled"):
        compute_score(
            "toy", "7", "7", {"lock": threading.Lock()}, function="scorers_under_test:process_id", timeout_s=PATIENCE_S
        )


EXIT_WITH_A_HANG = """
    import asyncio, os, sys
    from opd.rewards import compute_score_async

    async def main():
        arguments = {"function": "scorers_under_test:sleeps", "timeout_s": 600.0}
        calls = [asyncio.ensure_future(compute_score_async("toy", "7", path, {}, **arguments)) for path in sys.argv[1:]]
        while not any(os.path.exists(path) and open(path).read() for path in sys.argv[1:]):
            await asyncio.sleep(0.05)
        for call in calls:
            call.cancel()

    asyncio.run(main())
"""


def test_a_hung_scorer_does_not_hold_up_the_exit(tmp_path):
    paths = [str(tmp_path / str(i)) for i in range(6)]
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EXIT_WITH_A_HANG), *paths],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=300,
        check=True,
    )
    assert time.monotonic() - started < PATIENCE_S
    pids = [int(text) for path in paths if Path(path).exists() and (text := Path(path).read_text())]
    assert pids
    for pid in pids:
        assert wait_until(lambda pid=pid: not is_running(pid)), f"scorer {pid} outlived its parent"
