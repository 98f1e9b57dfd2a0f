"""vLLM's engine as a fork of a process that has imported vLLM: what it is then, how it ends, and that it is spawned where it cannot be one."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.processes import end_marked, is_running, marked_program

ROOT = Path(__file__).resolve().parents[2]
START_S = 240.0
ENDS_WITHIN_S = 15.0
SPAWNED = "vLLM's engine is spawned"


class _Program:
    """A server in a process of its own (engine_program.py)."""

    def __init__(self, process: subprocess.Popen[str]):
        self.pid = process.pid
        self._process = process
        self.output = ""
        self.told = self._next("engine")

    def ask(self) -> str:
        """What comes of a request."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._next("answer")["answer"]

    def _next(self, key: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if line.startswith(f'{{"{key}"'):
                return json.loads(line)
        raise AssertionError(self.output[-6000:])


@contextmanager
def _playing(how: str) -> Iterator[_Program]:
    mark = f"{os.getpid()}-engine-{how}"
    environment = os.environ | {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # as in Ray's actors
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with marked_program(mark, "tests.vllm_cpu.engine_program", how, environment=environment, **pipes) as process:
        too_long = threading.Timer(START_S, end_marked, [mark])
        too_long.start()
        try:
            yield _Program(process)
        finally:
            too_long.cancel()


def _await_end(*pids: int) -> None:
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def test_it_is_a_fork_with_the_environment_of_its_launch_and_ends_with_its_server():
    with _playing("forked") as program:
        told = program.told
        assert told["parent"] != program.pid
        assert "multiprocessing.forkserver" in told["parent_s_program"]
        assert "EngineCore" in told["name"]
        assert told["environment"].pop("OPD_TEST_MARK")
        assert told["environment"] == {"OPD_TEST_CHANGED": "launched"}
        assert program.ask() == "1 token"
        assert SPAWNED not in program.output
        os.kill(program.pid, signal.SIGKILL)
        _await_end(told["parent"], told["engine"], told["worker"])


@pytest.mark.parametrize("killed", ["engine", "parent"])
def test_its_death_and_that_of_the_fork_server_are_seen_by_its_server(killed):
    with _playing("forked") as program:
        os.kill(program.told[killed], signal.SIGKILL)
        _await_end(program.told["engine"], program.told["worker"])
        deadline_s = time.monotonic() + ENDS_WITHIN_S
        while program.ask() != "EngineDeadError":
            assert time.monotonic() < deadline_s


@pytest.mark.parametrize(
    ("how", "reason"),
    [("import", "could not import it"), ("killed", "could not import it"), ("threads", "has 2 threads")],
)
def test_it_is_spawned_where_it_cannot_be_a_fork(how, reason):
    with _playing(how) as program:
        assert program.told["parent"] == program.pid
        assert program.ask() == "1 token"
        [line] = (line for line in program.output.splitlines() if SPAWNED in line)
        assert reason in line


def test_vllm_still_spawns_it_by_the_context_that_is_changed():
    from vllm.v1.engine import utils

    source = inspect.getsource(utils.CoreEngineProcManager.__init__)
    assert "context = get_mp_context()" in source
    assert "context.Process(" in source


def test_what_is_imported_for_it_is_still_there():
    source = (ROOT / "src/opd/compat/vllm_imports.py").read_text()
    names = [line.split('"')[1] for line in source.splitlines() if line.startswith('    "')]
    assert len(names) > 10
    assert [name for name in names if importlib.util.find_spec(name) is None] == []


def test_nothing_is_imported_for_it_that_asks_a_device_then():
    program = "import opd.compat.vllm_imports, sys; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    imported = set(ended.stdout.splitlines()[-1].split())
    assert "vllm.v1.worker.gpu_model_runner" in imported
    asking = ("model_executor.layers.fla", "compilation.passes.pass_manager", "v1.attention.backends.flashinfer")
    assert [name for name in asking if f"vllm.{name}" in imported] == []
