"""A process that is forked as vLLM's engine is: its environment, its end, and when there is none. With vLLM's own engine: tests/vllm_cpu."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.processes import is_running, marked_program

ENDS_WITHIN_S = 10.0

pytestmark = pytest.mark.slow


def _playing(*how: str) -> AbstractContextManager[subprocess.Popen[str]]:
    mark, program = f"{os.getpid()}-vllm-engine", "tests.compat.vllm_start.engine"
    return marked_program(mark, program, *how, environment=os.environ, stdin=subprocess.PIPE)


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_it_has_the_environment_of_its_launch_from_its_first_object_on_and_its_end_is_seen():
    with _playing() as process:
        told = _told(process)
        assert (told["value"], told["then"]) == ("launched", "launched")
        assert told["parent"] != process.pid
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert _told(process) == {"exitcode": -signal.SIGTERM}


@pytest.mark.parametrize("killed", ["server", "fork server"])
def test_it_ends_with_the_process_that_asked_for_it_and_with_the_one_that_forked_it(killed):
    with _playing() as process:
        told = _told(process)
        os.kill({"server": process.pid, "fork server": told["parent"]}[killed], signal.SIGKILL)
        deadline_s = time.monotonic() + ENDS_WITHIN_S
        while is_running(told["pid"]) or is_running(told["parent"]):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_none_is_forked_where_vllm_cannot_be_imported():
    with _playing("nothing") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "vLLM's engine is spawned, and imports vLLM first: the fork server could not import it\n"
        assert _told(process) == {"forks": False}
