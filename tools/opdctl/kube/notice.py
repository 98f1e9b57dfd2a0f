"""Reads what a run says of its own progress in the ConfigMap `RUN-progress` (`cluster.progress`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from opd.runs.headline import Score
from opdctl.kube.client import CORE, ROLE_LABEL, RUN_LABEL, KubeApi, unix_s

COMPONENT = "progress"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """How a run stood when it wrote last; None for what it did not say, or not as it should."""

    phase: str
    updated_at_s: float
    progress_at_s: float | None = None
    stage: str = ""
    """The stage of a pipeline whose run says it."""
    attempt: int | None = None
    step: int | None = None
    total_steps: int | None = None
    eta_s: float | None = None
    score: Score | None = None
    loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; `score` as its value, beside `score_is_share`."""
        value, is_share = self.score or (None, None)
        return asdict(self) | {"score": value, "score_is_share": is_share}


def name_of(run_id: str) -> str:
    """The ConfigMap's name."""
    return f"{run_id}-{COMPONENT}"


def read_notice(tree: Mapping[str, Any] | None) -> Notice | None:
    """What the ConfigMap says; None where there is none, or its run has written nothing yet."""
    data = (tree or {}).get("data") or {}
    updated_at_s = _time(data.get("updatedAt"))
    if updated_at_s is None:
        return None
    step, total_steps, attempt = (_number(data.get(key)) for key in ("step", "totalSteps", "attempt"))
    score = _number(data.get("score"))
    return Notice(
        phase=str(data.get("phase", "")),
        updated_at_s=updated_at_s,
        progress_at_s=_time(data.get("progressAt")),
        stage=str(data.get("stage", "")),
        attempt=None if attempt is None else int(attempt),
        step=None if step is None else int(step),
        total_steps=None if total_steps is None else int(total_steps),
        eta_s=_number(data.get("etaSeconds")),
        score=None if score is None else Score(score, is_share=data.get("scoreIsShare") == "true"),
        loss=_number(data.get("loss")),
    )


def notices(api: KubeApi, *, everywhere: bool, selector: str) -> dict[tuple[str, str], Notice]:
    """Namespace and run id -> what each run says.

    Args:
        selector: further labels of the runs, `key=value,...`.

    Raises:
        ClusterError: the API server does not answer, or refuses.
    """
    path = f"{CORE}/configmaps" if everywhere else api.path("configmaps")
    wanted = ",".join(filter(None, (RUN_LABEL, f"{ROLE_LABEL}={COMPONENT}", selector)))
    found = {}
    for tree in api.list(path, selector=wanted):
        run_id, namespace = tree["metadata"]["labels"][RUN_LABEL], tree["metadata"].get("namespace", api.namespace)
        notice = read_notice(tree)
        if notice is not None and tree["metadata"]["name"] == name_of(run_id):
            found[namespace, run_id] = notice
    return found


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _time(text: Any) -> float | None:
    try:
        return unix_s(text) or None
    except (TypeError, ValueError, OverflowError):
        return None
