"""Origin of runs: attempts, versions, images and GPU-hours."""

from collections.abc import Mapping, Sequence
from typing import Any

from opd.errors import CorruptRecord
from opd.runs.origin import file_key
from opd.store.transfer import in_threads
from opdctl.runs.gather import NUM_THREADS, LoadedRun
from opdctl.runs.record import RunRecord
from opdctl.tables import NONE, Sheet, duration, moment

MAX_GPUS = 10**6


class Origin:
    """One run's attempts and the records of what each attempt ran."""

    def __init__(self, run: LoadedRun):
        self.record = run.record
        self.attempts = run.listing.attempt_lines()
        self.origins = {line.attempt: _record(run, file_key(line.attempt)) for line in self.attempts}

    def known(self, name: str) -> Any:
        """Return the newest record's value of a name; None where none has it."""
        return next((record[name] for record in reversed(self.origins.values()) if record.get(name)), None)

    @property
    def version(self) -> str:
        """Version and commit, such as `0.1.0 (1a2b3c4d5e6f)`."""
        commit, _, dirty = str(self.known("commit") or NONE).partition("-")
        return f"{self.known('version') or NONE} ({commit[:12]}{'-' * bool(dirty)}{dirty})"

    def devices(self, attempt: int) -> str:
        """Return the devices of an attempt, such as `16 × NVIDIA H200`; empty where it recorded none."""
        found = self.origins.get(attempt, {}).get("devices")
        return ", ".join(f"{number} × {name}" for name, number in found.items()) if isinstance(found, dict) else ""

    @property
    def gpu_hours(self) -> float:
        spans = (line.last_sign_s - line.started_at_s for line in self.attempts if line.started_at_s)
        return num_gpus(self.record) * sum(spans) / 3600


def num_gpus(record: RunRecord) -> int:
    """Return the number of GPUs by the spec; 0 on CPUs."""
    trainer = record.spec.get("trainer", {})
    numbers = [trainer.get(name) for name in ("nnodes", "gpus_per_node")] if isinstance(trainer, dict) else [None]
    known = [number for number in numbers if type(number) is int and abs(number) <= MAX_GPUS]
    return 0 if record.spec.get("device") == "cpu" or len(known) < 2 else known[0] * known[1]


def _record(run: LoadedRun, key: str) -> Mapping[str, Any]:
    try:
        found = run.listing.store.get_json(key) if key in run.listing else None
    except CorruptRecord:
        found = None
    return found if isinstance(found, dict) else {}


def tables(runs: Sequence[LoadedRun]) -> list[Sheet]:
    """Return the origin of the runs, and their attempts."""
    found = in_threads(Origin, runs, num_threads=NUM_THREADS)
    names = ("run", "opd (commit)", "image", "GPU-hours", "seed", "spec hash", "store")
    lines = [
        (item.record.run_id, item.version, str(item.known("image") or NONE), f"{item.gpu_hours:.3g}",
         str(item.record.spec.get("seed", NONE)), item.record.spec_hash[:12], item.record.url)
        for item in found
    ]  # fmt: skip
    heads = ("run", "attempt", "host", "devices", "started", "ran for", "ended")
    attempts = [
        (item.record.run_id, str(line.attempt), line.host, item.devices(line.attempt) or NONE, moment(line.started_at_s),
         duration(max(line.last_sign_s - line.started_at_s, 0)), line.end or "not yet")
        for item in found
        for line in item.attempts
    ]  # fmt: skip
    sheets = [Sheet(names=names, lines=lines), Sheet(names=heads, lines=attempts, title="Attempts")]
    return [sheet for sheet in sheets if sheet.lines]
