"""Requests to save: a pod that has to end writes a request into the run's folder and waits for the answer.

`python -m opd.pods.stop EXP.json` is the preStop hook of every Ray pod. The trainer answers after a step (`serve`), and
then holds still, so that no work after the save is lost. A pod asks only a trainer that gives signs of life.
"""

import contextlib
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opd.store.local import LocalStore

DEFAULT_ROOT = "outputs"  # the schema's default of `output.root`, which these programs read without the schema
FOLDER = "stop"
LISTENING = "listening"
LISTEN_INTERVAL_S = 5.0
# Six missed signs of life: shared file systems cache attributes for a few seconds.
LISTEN_TTL_S = 30.0
POLL_INTERVAL_S = 0.5
SAVE_SECONDS_VARIABLE = "OPD_SAVE_SECONDS"
DEFAULT_SAVE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The fields of the mounted experiment that pods read: name, the run's local folder, its store, and the whole file."""

    run_id: str
    run_dir: Path
    store_url: str
    tree: Mapping[str, Any] = field(default_factory=dict)


def read_experiment(path: str | Path) -> Experiment:
    """Read the chart's file, which always has `name`."""
    tree = json.loads(Path(path).read_text(encoding="utf-8"))
    root = tree.get("output", {}).get("root", DEFAULT_ROOT).rstrip("/")
    store_url = tree.get("store", {}).get("url", f"{root}/store")
    return Experiment(run_id=tree["name"], run_dir=Path(root) / tree["name"], store_url=store_url, tree=tree)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to save: its unique id, the pod that asks, and the trainer's hold after the save in seconds."""

    id: str
    pod: str
    hold_s: float


def ask(run_dir: Path, *, hold_s: float) -> Request:
    """Leave a request for the trainer."""
    request = Request(id=uuid.uuid4().hex, pod=socket.gethostname(), hold_s=hold_s)
    LocalStore(run_dir / FOLDER).put_json(f"{request.id}.request", asdict(request))
    return request


def requests(run_dir: Path, *, answered: bool = True) -> list[Request]:
    """Return the requests since the trainer's start, with or without those that have an answer; cheap enough for every step."""
    found = []
    for path in (run_dir / FOLDER).glob("*.request"):
        if answered or not path.with_suffix(".answer").exists():
            with contextlib.suppress(OSError):  # removed by the start of a later trainer, or a disk away for a moment
                found.append(Request(**json.loads(path.read_text())))
    return found


def serve(run_dir: Path, save: Callable[[], int | None], *, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Save once for all requests, answer, and hold still until the pods are gone; the trainer calls it after each step.

    Requests during the hold get an answer at once: nothing has been trained since the save.

    Args:
        save: saves and uploads; returns the step that is safe, None if there is none.
        is_over: returns True if the trainer has to end, which ends the hold.

    Returns:
        True if there was a request. The caller trains on, for the pods are still there.
    """
    if not requests(run_dir, answered=False):
        return False
    step = save()
    outcome = "nothing is saved in this run" if step is None else f"saved at step {step}, holding still"
    until_s = time.monotonic()
    while (waiting := requests(run_dir, answered=False)) or (time.monotonic() < until_s and not is_over()):
        for request in waiting:
            LocalStore(run_dir / FOLDER).put_json(f"{request.id}.answer", {"step": step})
            print(f"asked to save by {request.pod}, which is being deleted: {outcome}", flush=True)
            until_s = max(until_s, time.monotonic() + request.hold_s)
        time.sleep(min(POLL_INTERVAL_S, max(until_s - time.monotonic(), 0.0)))
    return True


def forget(run_dir: Path) -> None:
    """Remove requests to an earlier trainer, which cannot answer; a pod that still waits ends when its time is over."""
    with contextlib.suppress(OSError):
        for path in (run_dir / FOLDER).glob("*.*"):
            path.unlink(missing_ok=True)


def sign_of_life(run_dir: Path) -> None:
    """Record that a trainer listens here."""
    (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    (run_dir / FOLDER / LISTENING).write_text(socket.gethostname())


def stop_listening(run_dir: Path) -> None:
    """Record that no trainer listens any more; a disk that takes nothing must not change a run's exit code."""
    with contextlib.suppress(OSError):
        (run_dir / FOLDER / LISTENING).unlink()


def is_listening(run_dir: Path) -> bool:
    """Return True after a recent sign of life, by the clock of the file system that both sides see."""
    mark = run_dir / FOLDER / LISTENING
    probe = mark.with_name(f"{uuid.uuid4().hex}.clock")
    try:
        probe.touch()
        return probe.stat().st_mtime - mark.stat().st_mtime < LISTEN_TTL_S
    except FileNotFoundError:
        return False
    finally:
        probe.unlink(missing_ok=True)


def wait(run_dir: Path, request: Request, timeout_s: float) -> int | None:
    """Return the step saved for the request; None if the trainer ended or the time was up."""
    answer = run_dir / FOLDER / f"{request.id}.answer"
    deadline_s = time.monotonic() + timeout_s
    while not answer.exists():
        if time.monotonic() > deadline_s or not is_listening(run_dir):
            return None
        time.sleep(POLL_INTERVAL_S)
    step: int | None = json.loads(answer.read_text())["step"]
    return step


def save_seconds() -> float:
    """Return the longest wait for a save, from the pod's environment."""
    return float(os.environ.get(SAVE_SECONDS_VARIABLE, DEFAULT_SAVE_S))


def main(path: str) -> int:
    """Run the preStop hook; return 0, since a failed hook only hides the pod's reason to end."""
    run_dir, timeout_s = read_experiment(path).run_dir, save_seconds()
    said = "no trainer listens: nothing to save"
    if is_listening(run_dir):
        step = wait(run_dir, ask(run_dir, hold_s=timeout_s), timeout_s)
        said = f"saved at step {step}"
        if step is None:
            said = f"no save within {timeout_s:g} s: the last checkpoint counts"
    print(f"opd.pods.stop: {said}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
