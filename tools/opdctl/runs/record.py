"""One run as it lies in the store: what lists, tables and pages show of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from opd.monitor.monitor import Finding, standing
from opd.runs import headline
from opd.runs.headline import LOSS_KEYS, STEP_SECONDS_KEYS, Score, first_of, seconds_left

State = Literal["running", "silent", "stopped", "succeeded", "failed", "not started", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run as it lay in the store; everything is plain JSON."""

    run_id: str
    url: str
    kind: str
    spec_hash: str
    state: State
    detail: str
    """Why it failed or stopped; empty where all is well."""
    num_attempts: int
    last_step: int | None
    total_steps: int | None
    latest: dict[str, float] = field(default_factory=dict)
    """The last value of every metric."""
    validation: dict[str, list[float]] = field(default_factory=dict)
    """First and last value of each validation's core metric."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    """What was skipped or could not be read, a line each."""
    num_skipped_lines: int = 0
    last_sign_s: float = 0.0
    """Unix seconds of the last attempt's newest beat."""
    spec: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    """Of a pipeline that goes on, the stage that runs and its step, where its summary is believed."""

    @property
    def model(self) -> str:
        """The spec's `model.name`; empty for a conversion, and for specs of other makers."""
        model = self.spec.get("model")
        return str(model.get("name", "")) if isinstance(model, Mapping) else ""

    @property
    def loss(self) -> float | None:
        return first_of(self.latest, LOSS_KEYS)

    @property
    def rollout_score(self) -> Score | None:
        """Of the training answers."""
        return headline.rollout_score(self.latest)

    @property
    def score(self) -> Score | None:
        """Held-out accuracy of the first validation set, else the rollouts' own score."""
        return headline.score(self.latest)

    @property
    def complete_steps(self) -> list[int]:
        return [entry["step"] for entry in self.checkpoints if entry["is_complete"]]

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the last step's pace, for a run whose length the spec fixes."""
        pace_s = first_of(self.latest, STEP_SECONDS_KEYS)
        return seconds_left(self.last_step, self.total_steps, pace_s) if self.state == "running" else None

    @property
    def faults(self) -> list[Finding]:
        """What the trainer's monitor has named and not seen gone."""
        return standing(self.latest)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"faults": [asdict(fault) for fault in self.faults]}


def ended_state(outcome: str, detail: str) -> tuple[State, str]:
    """State and detail of a run without a result whose last attempt ended so, as its ended.json says."""
    return ("failed" if outcome in ("failed", "fatal") else "stopped"), detail or outcome


def told_apart(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Runs of one name from several stores are called by their URL."""
    num = Counter(record.run_id for record in records)
    return [replace(record, run_id=record.url) if num[record.run_id] > 1 else record for record in records]
