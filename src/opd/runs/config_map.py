"""Keeps a run's progress in a ConfigMap of its namespace, for those who reach the API server and not the store.

The chart makes the object and lets the run patch this one and no other; without it nothing is written.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from opd.runs.reporter import Snapshot

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
