"""Nothing that a run started outlives it, by any end: real processes, real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

# A run that leaves a child in its own session and an orphan (its parent is gone: only a subreaper still finds it).
CHILD = """
import os, signal, subprocess, sys, time
from opd.cluster.supervise import supervised

def run():
    mode = sys.argv[1]
    mark = sys.argv[2]
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", mark]
    quiet = dict(start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.Popen(sleep, **quiet)
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)"], **quiet)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        print("ready", flush=True)  # inside: a signal may come as soon as the test has read it
        if mode in ("waits", "saves", "stubborn"):
            while True:  # a signal just before one long sleep would be heard behind it
                time.sleep(0.05)
    finally:
        if mode == "saves":
            print("saving", flush=True)
            sys.stdin.read()  # for as long as the test keeps it
        print("saved", flush=True)
    if mode == "raises":
        raise RuntimeError("boom")
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode.startswith("reads"):
        sys.stdin.read()
    return {"failed": 1, "reads, and another stage follows": 75}.get(mode, 0)

sys.exit(supervised(run, grace_s=float(sys.argv[3])))
"""


def start(mode, mark, grace_s=20.0):
    command = [sys.executable, "-c", CHILD, mode, mark, str(grace_s)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def living(mark):
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if mark in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def finish(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture
def mark(request):
    """A word on the command line of everything a test starts, to find it again."""
    return f"opd-supervise-{os.getpid()}-{abs(hash(request.node.name))}"


@pytest.mark.parametrize(("mode", "code"), [("done", 0), ("failed", 1), ("raises", 1), ("killed", 1)])
def test_what_the_run_leaves_behind_is_ended_with_it(mode, code, mark):
    returncode, _, err = finish(start(mode, mark))
    assert returncode == code
    assert living(mark) == []
    assert ("ended 2 processes" in err) == (mode != "done"), "a good end needs no remark"
    assert ("RuntimeError: boom" in err) == (mode == "raises")
    assert ("SIGKILL (out of memory?)" in err) == (mode == "killed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_lets_it_save_and_exits_130(number, mark):
    process = start("waits", mark)
    assert len(living(mark)) >= 2
    process.send_signal(number)
    returncode, out, err = finish(process)
    assert (returncode, out) == (130, "saved\n")
    assert signal.Signals(number).name in err
    assert living(mark) == []


def test_a_second_signal_kills_at_once(mark):
    process = start("stubborn", mark, grace_s=300)
    process.send_signal(signal.SIGINT)
    assert "stopping the run" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert living(mark) == []


def kill_orphans(mark):
    """End the orphans of a run whose launcher was killed; the run has ended by itself."""
    for pid in living(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_run_whose_launcher_is_killed_ends_by_its_own_way_out(mark):
    process = start("waits", mark)
    process.kill()
    assert finish(process)[1] == "saved\n"
    kill_orphans(mark)


def test_a_run_that_saves_is_not_told_again_that_its_launcher_was_killed(mark):
    process = start("saves", mark)
    launcher = psutil.Process(process.pid)
    (run,) = (child.pid for child in launcher.children() if child.cmdline() == launcher.cmdline())  # it was forked
    process.kill()
    assert process.stdout.readline() == "saving\n"
    # Linux may tell once for each thread of the launcher; here it does so for certain, within the save.
    for _ in range(5):
        os.kill(run, signal.SIGHUP)
    assert finish(process)[1] == "saved\n"
    kill_orphans(mark)


@pytest.mark.parametrize(("mode", "code"), [("reads", 0), ("reads, and another stage follows", 130)])
def test_a_signal_behind_the_run_s_end_does_not_undo_it_and_stops_what_would_follow(mode, code, mark):
    process = start(mode, mark)
    launcher = psutil.Process(process.pid)
    (run,) = (child for child in launcher.children() if child.cmdline() == launcher.cmdline())  # it was forked
    launcher.suspend()
    process.stdin.close()
    deadline_s = time.monotonic() + 60
    while run.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    launcher.send_signal(signal.SIGTERM)
    launcher.resume()
    assert process.wait(60) == code
    assert living(mark) == []
