"""Starts `opd.launch` as a user does and reads what it left."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from opd.runs.manifest import complete_steps
from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
SPECS = Path(__file__).parent / "specs"
TIMEOUT_S = 480.0  # one run of a minute; the host may be slow, and another worker may run one too
_ERROR = re.compile(r"\bERROR\b|Traceback \(most recent call last\)")


@dataclass(kw_only=True)
class Outcome:
    """One finished start of a run."""

    returncode: int
    output: str
    run_dir: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Metrics merged over attempts, one row a step."""
        return [dict(row) for row in read_metrics([LocalStore(self.run_dir)])]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of training steps."""
        return [row for row in self.rows if "training/global_step" in row]

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run_dir.parent / "store" / self.run_dir.name / "result.json").read_text())

    def accuracy(self) -> list[float]:
        """Held-out accuracy at each validation."""
        key = "val-core/toy_add/acc/mean@1"
        return [row[key] for row in self.rows if key in row]

    def must_be_clean(self) -> Outcome:
        """Exit code 0 and no ERROR line or traceback anywhere in the output."""
        assert self.returncode == 0, self.output[-6000:]
        errors = [line for line in self.output.splitlines() if _ERROR.search(line)]
        assert not errors, errors[:5]
        return self


def weights(outcome: Outcome, step: int) -> dict[str, torch.Tensor]:
    """Return the model's tensors in the checkpoint of a step, by name; the run has one rank."""
    path = outcome.run_dir / "checkpoints" / f"global_step_{step}" / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(path, weights_only=False)
    return {name: getattr(value, "_local_tensor", value) for name, value in state.items()}


def must_end_alike(outcome: Outcome, whole: Outcome, step: int) -> None:
    """Check that the weights after this step are the uninterrupted run's, bit for bit."""
    found, expected = weights(outcome, step), weights(whole, step)
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if not torch.equal(value, expected[name])] == []


def kill_all(pid: int) -> None:
    """SIGKILL to every process of the run at once: the launcher alone would pass a SIGTERM on to its child."""
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def start(folder: Path, spec: str, *sets: str, raw: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The run in `folder` (its working directory), output into `folder/run.log`; `raw` are overrides of verl's own keys."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "opd.launch", str(SPECS / f"{spec}.yaml")]
    for item in sets:
        words += ["--set", item]
    with (folder / "run.log").open("w") as log:
        return subprocess.Popen([*words, "--", *raw], cwd=folder, stdout=log, stderr=subprocess.STDOUT, text=True)


class Listener(NamedTuple):
    """A listening TCP socket, with its process's command line."""

    address: str
    command: str

    @property
    def is_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        return address.is_loopback or bool(getattr(address, "ipv4_mapped", None) and address.ipv4_mapped.is_loopback)


def heard_during(process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> set[Listener]:
    """Return every socket on which the run's processes listened until its end, looked at twice a second."""
    heard: set[Listener] = set()
    deadline_s = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [root := psutil.Process(process.pid), *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    command = " ".join(one.cmdline())
                    sockets = one.net_connections("tcp")
                    heard |= {Listener(s.laddr.ip, command) for s in sockets if s.status == psutil.CONN_LISTEN}
        time.sleep(0.5)
    return heard


def finish(process: subprocess.Popen[str], folder: Path, spec: str, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Wait for a started run; a run that takes too long is ended with all its processes and fails the test."""
    try:
        returncode = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        tail = (folder / "run.log").read_text()[-6000:]
        raise AssertionError(f"{spec} did not end within {timeout_s:.0f} s:\n{tail}") from None
    finally:
        if process.poll() is None:  # also where the test's own limit ends this: its Ray would run during other tests
            kill_all(process.pid)
    output = (folder / "run.log").read_text()
    return Outcome(returncode=returncode, output=output, run_dir=folder / "out" / spec)


def run_and_kill(at: Path, folder: Path, spec: str, *sets: str, timeout_s: float = TIMEOUT_S) -> None:
    """Start a run and SIGKILL it once a file is there; a run that does not come so far fails the test."""
    process = start(folder, spec, *sets)
    deadline_s = time.monotonic() + timeout_s
    try:
        while not at.exists() and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert at.exists(), (folder / "run.log").read_text()[-4000:]
    finally:
        if process.poll() is None:
            kill_all(process.pid)
        process.wait(timeout=60)


def run(folder: Path, spec: str, *sets: str) -> Outcome:
    """Start and finish; the spec is a file of `specs/`, its run is named like it."""
    return finish(start(folder, spec, *sets), folder, spec)


def kill_and_resume(folder: Path, spec: str, *sets: str, behind: int) -> Outcome:
    """SIGKILL once the checkpoint of the step `behind` is sealed; run again, from the newest sealed step to the end."""
    run_dir = folder / "out" / spec
    run_and_kill(run_dir / "checkpoints" / f"global_step_{behind}" / "COMPLETE", folder, spec, *sets)
    newest = complete_steps([LocalStore(run_dir)])[-1]  # a later one on a machine that stalled this test
    resumed = run(folder, spec, *sets).must_be_clean()
    assert f"resuming from step {newest}" in resumed.output
    assert resumed.steps[-1]["training/global_step"] > newest, "the kill left something to do"
    return resumed
