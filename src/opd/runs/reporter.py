"""Tells others how a run stands while it lives: a thread that hands a snapshot to each of them every few seconds.

Nobody who is told can end the run or slow it: what fails is warned of once and tried again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from opd.runs.headline import (
    LOSS_KEYS,
    SKIPPED_KEYS,
    STEP_SECONDS_KEYS,
    THROUGHPUT_KEYS,
    Score,
    first_of,
    score,
    seconds_left,
)
from opd.runs.metrics import as_number
from opd.runs.progress import PROGRESS

logger = logging.getLogger(__name__)
INTERVAL_S = 5.0
# How long the end of a run waits for the thread, which may be within a request.
END_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """How an attempt stands; None for what is not known yet, or never will be."""

    attempt: int
    phase: str
    """The driver's phase (`opd.runs.progress`); `start` before the first, how the attempt ended after the last."""
    step: int
    stage: str = ""
    """The stage of a pipeline that runs, `distil (2 of 3)`."""
    stage_step: int = 0
    """Its step."""
    total_steps: int | None = None
    eta_s: float | None = None
    score: Score | None = None
    loss: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    num_skipped: int = 0
    """Updates that this attempt skipped, since loss or gradient was not finite."""
    progress_at_s: float | None = None
    """When the driver last made progress, Unix seconds."""
    limit_s: float | None = None
    """Without progress for this long the attempt is ended; None while it waits for others."""
    is_over: bool = False
    """Nothing follows."""


Tell = Callable[[Snapshot], None]


class Reporter:
    """What the training thread has seen, and who is told of it."""

    def __init__(self, *, attempt: int, interval_s: float = INTERVAL_S):
        self.total_steps: int | None = None
        self._attempt = attempt
        self._interval_s = interval_s
        self._step, self._num_skipped = 0, 0
        self._latest: dict[str, float] = {}
        self._told: list[Tell] = []
        self._warned: set[Tell] = set()
        self._telling = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, tell: Tell) -> None:
        """From now on `tell` gets a snapshot every few seconds, on a thread of its own."""
        with self._telling:
            self._told.append(tell)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="opd-reporter", daemon=True)
            self._thread.start()

    @contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        """`add` for as long as it is entered; once it is left nobody is within `tell`."""
        self.add(tell)
        try:
            yield
        finally:
            with self._telling:
                with contextlib.suppress(Exception):  # how the run stands as this is left, not up to 5 s before
                    tell(self.snapshot())
                self._told.remove(tell)

    def go_on_from(self, step: int) -> None:
        """The attempt begins behind this step of an earlier one."""
        self._step = max(step, self._step)

    def see(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a row of metrics."""
        if not self._told:
            return
        values = {name: as_number(value) for name, value in metrics.items()}
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}  # finite ones
        self._step = max(step, self._step)
        self._num_skipped += int(first_of(numbers, SKIPPED_KEYS) or 0)
        # One new mapping: `snapshot` reads it on another thread. What is not finite now has no older value either.
        self._latest = {
            name: value for name, value in (self._latest | numbers).items() if name in numbers or name not in values
        }

    def snapshot(self, outcome: str = "") -> Snapshot:
        """How the attempt stands now, or how it ended."""
        standing, latest = PROGRESS.read(), self._latest.copy()
        step_s = first_of(latest, STEP_SECONDS_KEYS)
        return Snapshot(
            attempt=self._attempt,
            phase=outcome or (standing.phase if standing else "start"),
            step=self._step,
            stage=standing.stage if standing else "",
            stage_step=standing.step if standing else 0,
            total_steps=self.total_steps,
            eta_s=None if outcome else seconds_left(self._step, self.total_steps, step_s),
            score=score(latest),
            loss=first_of(latest, LOSS_KEYS),
            step_s=step_s,
            tokens_per_s=first_of(latest, THROUGHPUT_KEYS),
            num_skipped=self._num_skipped,
            progress_at_s=time.time() - standing.silent_s() if standing else None,
            limit_s=standing.limit_s if standing and not outcome else None,
            is_over=bool(outcome),
        )

    def stop(self) -> None:
        """Nobody is told any more; what is on its way is waited for, but not for long."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)

    def close(self, outcome: str) -> None:
        """The attempt is over: everybody is told how, once. The run of an overtaken attempt is another's to report."""
        self.stop()
        if outcome != "overtaken":
            self._tell(self.snapshot(outcome))

    def _run(self) -> None:
        while not self._over.is_set():
            self._tell(self.snapshot())
            self._over.wait(self._interval_s)

    def _tell(self, snapshot: Snapshot) -> None:
        with self._telling:
            for tell in self._told:
                try:
                    tell(snapshot)
                except Exception as error:  # noqa: BLE001 - whatever it is, the run does not depend on it
                    if tell not in self._warned:
                        logger.warning("the run goes on, but %s cannot be told how: %s", tell, error)
                    self._warned.add(tell)
                else:
                    self._warned.discard(tell)


OBJECT_VARIABLE = "OPD_PROGRESS_OBJECT"
"""Path of the ConfigMap on the API server."""
FOLDER_VARIABLE = "OPD_PROGRESS_CREDENTIALS"
"""Folder with `token`, which Kubernetes renews there, and `ca.crt`."""
TIMEOUT_S = 3.0
# Between writes that say nothing new: a reader sees by their age that the run lives.
QUIET_S = 30.0


class ProgressConfigMap:
    """Patches the ConfigMap with each snapshot that says something new."""

    def __init__(self, path: str, *, host: str, port: int, folder: Path):
        self._path, self._host, self._port, self._folder = path, host, port, folder
        self._said: dict[str, str | None] = {}
        self._tried_at_s = -QUIET_S
        self._has_failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The one that the chart has made for this pod, None where there is none."""
        names = (OBJECT_VARIABLE, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", FOLDER_VARIABLE)
        path, host, port, folder = (environment.get(name, "") for name in names)
        if not (path and host and port.isdigit() and folder):
            return None
        return cls(path, host=host, port=int(port), folder=Path(folder))

    def __str__(self) -> str:
        return f"the ConfigMap {self._path.rpartition('/')[2]}"

    def __call__(self, snapshot: Snapshot) -> None:
        """Write the snapshot, unless it says nothing new, or the last try has failed and is recent; the last one always.

        Raises:
            OSError: the API server does not answer, or refuses.
        """
        said = fields(snapshot)
        is_recent = time.monotonic() - self._tried_at_s < QUIET_S
        if is_recent and not snapshot.is_over and (self._has_failed or said == self._said):
            return
        self._tried_at_s, self._has_failed = time.monotonic(), True
        moment = time.time()
        times = {"updatedAt": stamp(moment), "progressAt": stamp(snapshot.progress_at_s)}
        self._patch({"data": {**said, **times}})
        self._said, self._has_failed = said, False

    def _patch(self, body: Mapping[str, Any]) -> None:
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        # On by default from Python 3.13 on: it refuses authorities of clusters that lack a key identifier.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)
        headers = {
            "Authorization": f"Bearer {(self._folder / 'token').read_text().strip()}",
            "Content-Type": "application/merge-patch+json",
        }
        try:
            connection.request("PATCH", self._path, json.dumps(body), headers)
            status = connection.getresponse().status
        except http.client.HTTPException as error:
            raise OSError(f"no answer of the API server: {error!r}") from error
        finally:
            connection.close()
        if status >= 300:
            raise OSError(f"the API server answers {status}")


def fields(snapshot: Snapshot) -> dict[str, str | None]:
    """The object's data but for the times; None takes a field out."""
    numbers = {
        "totalSteps": snapshot.total_steps,
        "etaSeconds": None if snapshot.eta_s is None else round(snapshot.eta_s),
        "score": None if snapshot.score is None else float(f"{snapshot.score.value:.6g}"),
        "loss": None if snapshot.loss is None else float(f"{snapshot.loss:.6g}"),
    }
    return {
        "attempt": str(snapshot.attempt),
        "stage": snapshot.stage or None,
        "phase": snapshot.phase,
        "step": str(snapshot.step),
        "scoreIsShare": None if snapshot.score is None else str(snapshot.score.is_share).lower(),
        **{name: None if number is None else str(number) for name, number in numbers.items()},
    }


def stamp(moment_s: float | None) -> str | None:
    """Unix seconds as Kubernetes writes a time."""
    return None if moment_s is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment_s))
