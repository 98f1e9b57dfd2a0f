"""The driver's log: everything printed at any level is kept, live, without secrets, and the terminal still sees it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from opd.runs.driver_log import COPIER

PREAMBLE = """
import ctypes, os, resource, signal, subprocess, sys, threading, time
from pathlib import Path
from opd.runs import driver_log
tee = driver_log.LogTee(Path(sys.argv[1]))
"""
PRINT_EVERYWHERE = """
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]  # `select` takes no descriptor of 1,024
print("before")
tee.start()
print("from python")
print("to stderr", file=sys.stderr)
libc = ctypes.CDLL(None)
libc.puts(b"from C")
libc.fflush(None)
os.write(1, b"from the descriptor\\n")
subprocess.run(["echo", "from a child"], check=True)
tee.stop()
print("after")
"""
PRINT_AND_DIE = """
tee.start()
for number in range(1000):
    print("line", number)
os.kill(os.getpid(), signal.SIGKILL)
"""
LEAVE_A_CHILD = """
driver_log.DRAIN_TIMEOUT_S = 0.2
tee.start()
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
started = time.monotonic()
tee.stop()
print("stopped after", time.monotonic() - started < 30)
daemon.kill()
"""
PRINT_ON_BOTH = """
tee.start()

def say(stream, name):
    for number in range(2000):
        print(name, number, "x" * 50, file=stream)

threads = [threading.Thread(target=say, args=pair) for pair in ((sys.stdout, "out"), (sys.stderr, "err"))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdout.write("half ")
print("whole", file=sys.stderr)
sys.stdout.write("a line\\n")
tee.stop()
"""


def test_python_native_and_child_output_is_logged_and_shown(start_child: Callable, tmp_path: Path) -> None:
    child = start_child(PREAMBLE + PRINT_EVERYWHERE, tmp_path / "attempts/driver.log")
    assert child.wait() == 0, child.text
    logged = sorted((tmp_path / "attempts/driver.log").read_text().splitlines())
    assert logged == sorted(["from python", "to stderr", "from C", "from the descriptor", "from a child"])
    assert sorted(child.text.splitlines()) == sorted([*logged, "before", "after"])


def test_output_before_a_sigkill_is_kept(start_child: Callable, tmp_path: Path, until: Callable) -> None:
    assert start_child(PREAMBLE + PRINT_AND_DIE, tmp_path / "log").wait() == -9
    until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text().endswith("line 999\n"))
    assert (tmp_path / "log").read_text().count("\n") == 1000


def test_a_child_that_outlives_the_driver_does_not_hold_it_up(start_child: Callable, tmp_path: Path) -> None:
    child = start_child(PREAMBLE + LEAVE_A_CHILD, tmp_path / "log")
    assert child.wait() == 0
    assert "stopped after True" in child.text


def test_lines_of_both_streams_stay_whole_where_python_does_not_buffer(start_child: Callable, tmp_path: Path) -> None:
    assert start_child(PREAMBLE + PRINT_ON_BOTH, tmp_path / "log", PYTHONUNBUFFERED="1").wait() == 0
    lines = (tmp_path / "log").read_text().splitlines()
    written = [f"{name} {number} {'x' * 50}" for name in ("out", "err") for number in range(2000)]
    assert sorted(lines) == sorted([*written, "half a line", "whole"])


def test_the_copy_outlives_a_signal_to_all_processes_and_holds_no_secret(tmp_path: Path, until: Callable) -> None:
    log = tmp_path / "driver.log"
    command = [sys.executable, "-I", "-S", str(COPIER), str(log), "0", "1"]
    secret = b"HF_TOKEN=hf_abcdefghijkl and open-sesame\n\xff\n"
    environment = {"RAY_AUTH_TOKEN": "open-sesame"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as copier:
        assert copier.stdin is not None
        copier.stdin.write(b"whole\nha")
        copier.stdin.flush()
        until(lambda: log.exists() and log.read_text() == "whole\n")
        copier.terminate()
        copier.stdin.write(b"lf\n" + secret + b"last")
        shown, _ = copier.communicate(timeout=60)
    assert (copier.returncode, shown) == (0, b"whole\nhalf\n" + secret + b"last"), "the terminal shows it all"
    assert log.read_bytes() == b"whole\nhalf\nHF_TOKEN=<redacted> and <redacted>\n\xff\nlast"
