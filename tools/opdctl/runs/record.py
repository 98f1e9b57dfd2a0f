"""One run as its store holds it: its record, read and checked from the run's files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from opd.errors import CorruptRecord
from opd.monitor.monitor import Finding, standing
from opd.redaction import one_line, redact, redact_tree
from opd.runs import headline
from opd.runs.identity import RUN_FILE, SPEC_FILE
from opd.runs.metrics import METRICS_FILE, RESERVED_KEYS
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.runs.summary import FINISHED
from opdctl.runs.listing import Listing
from opdctl.runs.metrics import read_metrics

_MALFORMED = (
    ArithmeticError, AttributeError, CorruptRecord, FileNotFoundError, LookupError, RecursionError, TypeError, ValueError,
    pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run as it was in the store; all fields are plain JSON.

    Attributes:
        state: running, silent, stopped, succeeded, failed, not started, or unreadable.
        detail: the reason of a failure or stop.
        latest: the last value of every metric.
        validation: first and last value of each validation's core metric; of one validation, or of a summary, the last alone.
        evaluation: the numbers of an evaluation by data set.
        problems: one line for each thing that was skipped or could not be read.
        last_sign_s: Unix seconds of the last attempt's newest record.
        stage: a running pipeline's stage and its step.
        num_gpus: GPUs that its pods hold, in a list of live runs.
    """

    run_id: str
    url: str
    state: str
    kind: str = ""
    spec_hash: str = ""
    detail: str = ""
    num_attempts: int = 0
    last_step: int | None = None
    total_steps: int | None = None
    latest: dict[str, float] = field(default_factory=dict)
    validation: dict[str, list[float]] = field(default_factory=dict)
    evaluation: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    last_sign_s: float = 0.0
    spec: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    num_gpus: int = 0

    @property
    def loss(self) -> float | None:
        return headline.first_of(self.latest, headline.LOSS_KEYS)

    @property
    def training_score(self) -> headline.Score | None:
        """Accuracy of the training answers, or their scorer's mean."""
        return headline.rollout_score(self.latest)

    @property
    def validation_accuracy(self) -> float | None:
        """Last held-out accuracy of the first validation set."""
        name = min(filter(is_validation_accuracy, self.latest), default=None)
        return None if name is None else self.latest[name]

    @property
    def complete_steps(self) -> list[int]:
        return [entry["step"] for entry in self.checkpoints if entry["is_complete"]]

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the last step's pace; None for a run that has ended or has no fixed length."""
        pace_s = headline.first_of(self.latest, headline.STEP_SECONDS_KEYS)
        return headline.seconds_left(self.last_step, self.total_steps, pace_s) if self.state == "running" else None

    @property
    def faults(self) -> list[Finding]:
        """The faults that the trainer's monitor reported and has not seen end."""
        return standing(self.latest)

    @property
    def remarks(self) -> list[str]:
        """Lines about the end, the standing faults and the problems."""
        return [*([f"{self.state}: {self.detail}"] if self.detail else []), *(f"fault {fault}" for fault in self.faults),
                *(f"warning: {problem}" for problem in self.problems)]  # fmt: skip

    def to_json(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return the fields and the derived numbers as plain values; `names` are the wanted ones."""
        score = self.training_score
        tree = asdict(self) | {
            "loss": self.loss, "eta_s": self.eta_s, "faults": [asdict(fault) for fault in self.faults],
            "checkpoint": self.complete_steps[-1] if self.complete_steps else None,
            "validation_accuracy": self.validation_accuracy, "training_score": score.value if score else None,
            "training_accuracy": score.value if score and score.is_share else None,
        }  # fmt: skip
        return {name: tree[name] for name in names or tree}


def is_validation(name: str) -> bool:
    """Return whether a metric is a validation's core score."""
    return name.startswith(headline.VALIDATION_PREFIX) and not name.endswith("stderr")


def is_validation_accuracy(name: str) -> bool:
    """Return whether a metric is a validation's accuracy."""
    return is_validation(name) and "/acc/mean@" in name


def ended_state(outcome: str, detail: str) -> tuple[str, str]:
    """Return state and detail of a run whose last attempt ended with this outcome."""
    if outcome == FINISHED:
        return "succeeded", ""
    return ("failed" if outcome in ("failed", "fatal") else "stopped"), detail or outcome


def told_apart(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Name runs that share a name by their URL."""
    num = Counter(record.run_id for record in records)
    return [replace(record, run_id=record.url) if num[record.run_id] > 1 else record for record in records]


def read_run(listing: Listing, *, run_id: str) -> tuple[RunRecord, pa.Table]:
    """Read a run: its record, and its metrics merged over the attempts.

    The record of a run with files of an unforeseen shape, or of a run that is deleted meanwhile, is `unreadable`.
    """
    try:
        return _read_run(listing, run_id=run_id)
    except _MALFORMED as error:
        detail = redact(f"its records cannot be read ({type(error).__name__}: {error})")
        return RunRecord(
            run_id=one_line(run_id), url=listing.store.url, state="unreadable", detail=detail
        ), read_metrics({})[0]


def _read_run(listing: Listing, *, run_id: str) -> tuple[RunRecord, pa.Table]:
    table, problems = read_metrics({
        attempt: b"".join(listing.store.get(key) for key in listing.parts(attempt, METRICS_FILE))
        for attempt in listing.folders()
    })  # fmt: skip
    records = {name: listing.store.get_json(name) if name in listing else None
               for name in (RUN_FILE, SPEC_FILE, RESULT_FILE, FATAL_FILE)}  # fmt: skip
    spec: dict[str, Any] = redact_tree(records[SPEC_FILE] or {})
    result = redact_tree(records[RESULT_FILE])
    newest = listing.newest()
    # An attempt without an end is running while its lease holds.
    state, detail = "not started" if newest is None else "running" if newest.is_alive else "silent", ""
    if records[RESULT_FILE] is not None:
        state = "succeeded"
    elif (fatal := records[FATAL_FILE]) is not None:
        state, detail = "failed", str(fatal.get("reason", ""))
    elif newest is not None and newest.outcome:
        state, detail = ended_state(newest.outcome, newest.detail)
    steps = table["step"].to_numpy()
    values = {name: logged for name in table.column_names
              if name not in RESERVED_KEYS and len(logged := table[name].drop_null())}  # fmt: skip
    record = RunRecord(
        run_id=one_line(run_id),
        url=listing.store.url,
        kind=one_line(str(spec.get("kind", ""))),
        spec_hash=one_line(str((records[RUN_FILE] or {}).get("spec_hash", ""))),
        state=state,
        detail=redact(detail),
        num_attempts=len(listing.attempts()),
        last_step=int(steps[-1]) if len(steps) else None,
        total_steps=headline.total_steps(spec, result),
        latest={name: float(logged[-1].as_py()) for name, logged in values.items()},
        validation={name: [float(values[name][place].as_py()) for place in (0, -1)[: len(values[name])]]
                    for name in filter(is_validation, values)},
        evaluation={name: _evaluation(found) for name, found in ((result or {}).get("eval") or {}).items()},
        checkpoints=listing.checkpoints(),
        result=result,
        problems=[redact(problem) for problem in problems],
        last_sign_s=newest.last_sign_s if newest else 0.0,
        spec=spec,
    )  # fmt: skip
    return record, table


def _evaluation(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of one data set, each of its own type."""
    means, n = values["means"], int(values["num_samples"])
    error = values["standard_errors"]["acc/mean"]
    return {
        "num_problems": int(values["num_problems"]), "num_samples": n, "num_dropped": int(values["num_dropped"]),
        "mean": float(means["acc/mean"]), "standard_error": None if error is None else float(error),
        "pass_at": float(means[f"acc/pass@{n}"]), "maj": float(means["acc/maj"]),
    }  # fmt: skip
