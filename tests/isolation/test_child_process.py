"""Messages that a parent gets of a child process: its message, that it has ended, or nothing in time."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opd.isolation.pool import ChildProcess

CHILD_OF_A_CHILD = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])
place = Path(__file__).parent
(place / 'environment').write_text(str(sorted(os.environ)))
(place / 'new').write_text(str(child.pid))
(place / 'new').rename(place / 'pid')
time.sleep(600)
"""


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess("opd.isolation.serving", ["opd.rewards.worker:serve"])
    yield child
    child.kill()
    child.connection.close()


def test_a_child_that_sends_nothing_is_late(child: ChildProcess) -> None:
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        child.receive(0.1)


def test_a_child_that_has_ended_otherwise_is_not_late_however_long_the_parent_stood_still(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    assert child.exit_status() == " with exit status -9"
    with pytest.raises(EOFError):
        child.receive(0.0)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_child_has_started_ends_with_it_and_has_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaver.py").write_text(CHILD_OF_A_CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:open-sesame@proxy:3128")
    child = ChildProcess("leaver")
    try:
        deadline_s = time.monotonic() + 60.0
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        pid = int((tmp_path / "pid").read_text())
        assert _lives(pid)
        child.kill()
        while _lives(pid) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not _lives(pid)
        names = (tmp_path / "environment").read_text()
        assert "PATH" in names
        assert "AWS_SECRET_ACCESS_KEY" not in names
        assert "HTTPS_PROXY" not in names
    finally:
        child.kill()
        child.connection.close()
