"""Origin of runs: attempts, versions, images, GPU-hours, models, trackers, and the preflight's findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opd.errors import CorruptRecord
from opd.monitor.preflight import Line
from opd.redaction import one_line, redact
from opd.runs.origin import file_key
from opdctl.runs.attempts import AttemptLine, attempt_lines
from opdctl.runs.gather import NUM_THREADS, GatheredRun, in_threads
from opdctl.runs.tables import NONE, Sheet, duration, moment

MAX_GPUS = 10**6
Tree = Mapping[str, Any]


class Origin:
    """One run's attempts and the records of what each attempt ran."""

    def __init__(self, run: GatheredRun):
        self.record = run.record
        self.attempts: list[AttemptLine] = attempt_lines(run.listing)
        records = {line.attempt: _record(run, file_key(line.attempt)) for line in self.attempts}
        self.origins: dict[int, Tree] = {attempt: found for attempt, found in records.items() if found}

    @property
    def newest(self) -> list[Tree]:
        """The records, the newest first."""
        return [self.origins[attempt] for attempt in sorted(self.origins, reverse=True)]

    @property
    def version(self) -> str:
        """Version and commit, such as `0.1.0 (1a2b3c4d5e6f)`."""
        version, commit = (str((self.newest or [{}])[0].get(name, "")) for name in ("version", "commit"))
        hash_, _, dirty = commit.partition("-")
        return " ".join(filter(None, (version, f"({hash_[:12]}{'-' * bool(dirty)}{dirty})" if commit else "")))

    @property
    def preflight(self) -> list[Line]:
        """Lines of the newest attempt that made the first step."""
        return next(filter(None, (Line.read(record.get("preflight")) for record in self.newest)), [])

    def devices(self, attempt: int) -> str:
        """Return the devices of an attempt, such as `16 × NVIDIA H200`; empty where it recorded none."""
        found = self.origins.get(attempt, {}).get("devices")
        return ", ".join(f"{number} × {name}" for name, number in found.items()) if isinstance(found, dict) else ""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs by the spec; 0 on CPUs."""
        trainer = self.record.spec.get("trainer", {})
        numbers = [trainer.get(name) for name in ("nnodes", "gpus_per_node")]
        is_known = all(type(number) is int and abs(number) <= MAX_GPUS for number in numbers)
        return 0 if self.record.spec.get("device") == "cpu" or not is_known else int(numbers[0] * numbers[1])

    @property
    def gpu_hours(self) -> float:
        return self.num_gpus * sum(line.seconds for line in self.attempts) / 3600

    @property
    def trackers(self) -> list[str]:
        """Addresses of the run's trackers that a browser may follow."""
        found = (record.get("trackers") for record in self.newest)
        urls = dict.fromkeys(url for tree in found if isinstance(tree, dict) for url in tree.values())
        return [url for url in urls if isinstance(url, str) and url.startswith(("http://", "https://"))]


def _record(run: GatheredRun, key: str) -> Tree:
    try:
        found = run.listing.store.get_json(key) if key in run.listing else None
    except CorruptRecord:
        found = None
    return found if isinstance(found, dict) else {}


def origins(runs: Sequence[GatheredRun]) -> list[Origin]:
    """Read the origin of every run.

    Raises:
        StoreError: a store is unreachable.
    """
    return in_threads(Origin, runs, num_threads=NUM_THREADS)


def models(spec: Tree) -> str:
    """Return the teachers of a spec, and the adapters that it trains."""
    several = _section(spec, "teachers")
    teachers = [f"{name}: {_path(several, name)}" for name in sorted(several)]
    if _section(spec, "teacher"):
        teachers.insert(0, _path(spec, "teacher"))
    lora = _section(_section(spec, "model"), "lora")
    parts = [f"teacher {'; '.join(teachers)}"] if teachers else []
    parts += [f"LoRA, rank {lora.get('rank', '?')}, alpha {lora.get('alpha', '?')}"] if lora else []
    return "; ".join(parts)


def _section(tree: Tree, name: str) -> Tree:
    part = tree.get(name)
    return part if isinstance(part, Mapping) else {}


def _path(tree: Tree, name: str) -> str:
    return str(_section(tree, name).get("path", NONE))


def tables(found: Sequence[Origin]) -> list[Sheet]:
    """Return the origin of the runs, their attempts, and the preflight's findings."""
    lines = [
        (
            item.record.run_id,
            redact(item.version) or NONE,
            redact(str(next((record["image"] for record in item.newest if record.get("image")), NONE))),
            redact(models(item.record.spec)) or NONE,
            f"{item.gpu_hours:.3g}",
            str(item.record.spec.get("seed", NONE)),
            item.record.spec_hash[:12],
            "\n".join([redact(item.record.url), *map(redact, item.trackers)]),
        )
        for item in found
    ]
    names = ("run", "opd (commit)", "image", "models", "GPU-hours", "seed", "spec hash", "store and trackers")
    attempts = [
        (
            item.record.run_id, str(line.attempt), one_line(line.host), redact(item.devices(line.attempt)) or NONE,
            moment(line.started_at_s), duration(line.seconds), redact(line.end or "not yet"),
        )
        for item in found
        for line in item.attempts
    ]  # fmt: skip
    checks = [
        (item.record.run_id, redact(line.name), line.verdict, redact(line.says))
        for item in found
        for line in item.preflight
    ]
    out = [Sheet(names=names, lines=lines)]
    heads = ("run", "attempt", "host", "devices", "started", "ran for", "ended")
    out += [Sheet(names=heads, lines=attempts, title="Attempts")] if attempts else []
    return out + (
        [Sheet(names=("run", "check", "verdict", "finding"), lines=checks, title="Preflight")] if checks else []
    )
