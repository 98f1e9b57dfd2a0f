"""Stacks of a run's processes, which the processes write themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from opd.runs import stacks

SLOW = """
import os, signal, sys, time
from pathlib import Path
answers = Path(sys.argv[1], f"{os.getpid()}.txt")
signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(1), answers.write_text("lines of a thread")))
answers.touch()
print(flush=True)
time.sleep(600)
"""


def test_a_process_that_answers_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stacks.FOLDER_VARIABLE, str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            text = stacks.dump()
        finally:
            process.kill()
    assert text.startswith(f"===== process {process.pid}: {sys.executable} -c")
    assert text.endswith("\nlines of a thread\n")
