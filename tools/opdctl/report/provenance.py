"""Where a run came from: attempts, versions, images, GPU-hours, models, and the teacher's preflight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from opd.errors import CorruptRecord
from opd.monitor.preflight import Line
from opd.runs.origin import file_key
from opdctl.runs.gather import NUM_THREADS, GatheredRun
from opdctl.runs.listing import Listing
from opdctl.runs.record import RunRecord
from opdctl.runs.state import AttemptLine, attempt_lines


def origins(listing: Listing) -> dict[int, Mapping[str, Any]]:
    """Return what each attempt told, by its number.

    Raises:
        StoreError: the store is away.
    """
    told = {attempt: _record(listing, file_key(attempt)) for attempt in listing.attempts()}
    return {attempt: found for attempt, found in told.items() if found}


def preflight(told: Mapping[int, Mapping[str, Any]]) -> list[Line]:
    """Of the newest attempt that made the first step; empty where none told it."""
    found = (Line.read(told[attempt].get("preflight")) for attempt in sorted(told, reverse=True))
    return next(filter(None, found), [])


def _record(listing: Listing, key: str) -> Mapping[str, Any]:
    """A record of a run, empty where there is none or it cannot be read."""
    try:
        found = listing.store.get_json(key) if key in listing else None
    except CorruptRecord:
        found = None
    return found if isinstance(found, dict) else {}


def trained_models(spec: Mapping[str, Any]) -> str:
    """`LoRA, rank 8, alpha 16 (all-linear)` or `all weights`; empty of a kind that trains nothing."""
    if not isinstance(spec.get("actor"), Mapping):
        return ""
    lora = _section(_section(spec, "model"), "lora")
    if not lora:
        return "all weights"
    modules = lora.get("target_modules", "")
    where = ", ".join(map(str, modules)) if isinstance(modules, list) else str(modules)
    return f"LoRA, rank {lora.get('rank', '?')}, alpha {lora.get('alpha', '?')}" + (f" ({where})" if where else "")


def teacher_models(spec: Mapping[str, Any]) -> list[str]:
    """`NAME: path` of each of several teachers, or the path of one; behind them the blends that `route` names."""
    several = _section(spec, "teachers")
    found = [f"{name}: {_path(several, name)}" for name in sorted(several)]
    if _section(spec, "teacher"):
        found.insert(0, _path(spec, "teacher"))
    blends = _section(_section(spec, "route"), "blends")
    for name in sorted(blends):
        blend = _section(blends, name)
        parts = " + ".join(f"{weight} {of}" for of, weight in sorted(_section(blend, "weights").items()))
        found.append(f"{name}: {blend.get('form', 'mixture')} of {parts}")
    return found


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of the spec; empty where there is none, or no map: whoever writes into a store wrote it."""
    part = tree.get(name)
    return part if isinstance(part, Mapping) else {}


def _path(tree: Mapping[str, Any], name: str) -> str:
    return str(_section(tree, name).get("path", "–"))


MAX_GPUS = 10**6
"""A spec that says more of nodes, or of GPUs in one, is no spec of a run."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """One run's; what no record tells is 0 or empty."""

    record: RunRecord
    attempts: tuple[AttemptLine, ...]
    origins: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What each attempt ran, by its number, as `opd.runs.origin` told it."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """What the last attempt ran that told it; else empty."""
        return self.origins[max(self.origins)] if self.origins else {}

    @property
    def commit(self) -> str:
        """`0.1.0 (1a2b3c4d5e6f)`: the version, and the commit as far as it is known."""
        version, commit = (str(self.origin.get(name, "")) for name in ("version", "commit"))
        hash_, _, dirty = commit.partition("-")
        return " ".join(filter(None, (version, f"({hash_[:12]}{'-' * bool(dirty)}{dirty})" if commit else "")))

    @property
    def preflight(self) -> list[Line]:
        """What the first step showed of the teacher; empty where there is none."""
        return preflight(self.origins)

    @property
    def trained(self) -> str:
        """All weights or adapters, with their settings; empty of a kind that trains nothing."""
        return trained_models(self.record.spec)

    @property
    def teachers(self) -> list[str]:
        """Each teacher and blend; empty of a kind without."""
        return teacher_models(self.record.spec)

    @property
    def trackers(self) -> list[tuple[str, str]]:
        """Where else the run logged: `wandb PROJECT/RUN`, and its address there, empty where none was told."""
        trainer = self.record.spec.get("trainer", {})
        loggers, project = trainer.get("loggers"), trainer.get("project", "opd")
        known = {
            "wandb": f"wandb {project}/{self.record.run_id}",
            "mlflow": f"mlflow {project}",
            "tensorboard": "tensorboard, in the run directory",
        }
        names = [name for name in loggers if name in known] if isinstance(loggers, list) else []
        return [(known[name], self._address(name)) for name in names]

    def _address(self, tracker: str) -> str:
        """The newest one that a browser may follow; whoever writes into a run directory wrote it."""
        for attempt in sorted(self.origins, reverse=True):
            told = self.origins[attempt].get("trackers")
            url = told.get(tracker) if isinstance(told, dict) else None
            if isinstance(url, str) and url.startswith(("http://", "https://")):
                return url
        return ""

    def devices(self, attempt: int) -> str:
        """`16 × NVIDIA H200`, `2 × CPU`; empty where the attempt did not tell it, or never came so far."""
        told = self.origins.get(attempt, {}).get("devices")
        return ", ".join(f"{number} × {name}" for name, number in told.items()) if isinstance(told, dict) else ""

    @property
    def num_gpus(self) -> int:
        """Of the spec; 0 on CPUs, and where the spec does not say it."""
        trainer = self.record.spec.get("trainer", {})
        numbers = [trainer.get(name) for name in ("nnodes", "gpus_per_node")]
        is_known = all(type(number) is int and abs(number) <= MAX_GPUS for number in numbers)
        if self.record.spec.get("device") == "cpu" or not is_known:
            return 0
        return int(numbers[0] * numbers[1])

    @property
    def gpus(self) -> str:
        """`16 × NVIDIA H200` of the newest attempt that told it, else `2 × 8` of the spec; `none` on CPUs."""
        told = [self.devices(attempt) for attempt in sorted(self.origins, reverse=True)]
        if self.record.spec.get("device") == "cpu":
            return "none"
        if any(told):
            return next(filter(None, told))
        trainer = self.record.spec.get("trainer", {})
        return f"{trainer['nnodes']} × {trainer['gpus_per_node']}" if self.num_gpus else "–"

    @property
    def started_at_s(self) -> float:
        """Unix seconds of the first attempt."""
        return min((line.started_at_s for line in self.attempts if line.started_at_s), default=0.0)

    @property
    def seconds(self) -> float:
        """All attempts together, without the time between them."""
        return sum(map(self.seconds_of, self.attempts))

    @property
    def gpu_hours(self) -> float:
        return self.num_gpus * self.seconds / 3600

    @staticmethod
    def seconds_of(line: AttemptLine) -> float:
        """From its claim to its last sign of life."""
        return max(line.last_sign_s - line.started_at_s, 0.0) if line.started_at_s and line.last_sign_s else 0.0


def provenance(runs: Sequence[GatheredRun]) -> list[Provenance]:
    """Of every run, in their order.

    Raises:
        StoreError: a store is away.
    """

    def read(run: GatheredRun) -> Provenance:
        listing = run.listing
        return Provenance(record=run.record, attempts=tuple(attempt_lines(listing)), origins=origins(listing))

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(read, runs))
