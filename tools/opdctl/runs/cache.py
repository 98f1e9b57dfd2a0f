"""Keeps each run's record and merged metrics on disk, by the fingerprint of the run's listing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_VARIABLE = "OPDCTL_CACHE_DIR"
# Bumped when a record or the metrics get another form.
FORMAT_VERSION = 2


def default_folder() -> Path:
    """$OPDCTL_CACHE_DIR, else below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "opdctl")


@contextmanager
def cache_folder(*, use_cache: bool) -> Iterator[Path]:
    """The folder that runs are cached in: the user's, or one that is gone afterwards."""
    if use_cache:
        yield default_folder()
        return
    with tempfile.TemporaryDirectory(prefix="opdctl-") as folder:
        yield Path(folder)


class RunCache:
    """Two files a run: `record.json`, which holds the fingerprint, and `metrics.arrow`, which is written before it."""

    def __init__(self, folder: Path, url: str):
        self.folder = folder / f"v{FORMAT_VERSION}" / hashlib.sha256(url.encode()).hexdigest()[:32]
        self._unsaved: pa.Table | None = None

    def load(self, fingerprint: str) -> dict[str, Any] | None:
        """The record, None if there is none for this fingerprint."""
        try:
            entry: dict[str, Any] = json.loads((self.folder / "record.json").read_bytes())
            if entry["fingerprint"] == fingerprint and self._metrics(entry).is_file():
                record: dict[str, Any] = entry["record"]
                return record
        except (OSError, ValueError, KeyError, TypeError):
            return None  # nothing, something that was cut short, or not ours to read: read the store again
        return None

    def save(self, fingerprint: str, record: dict[str, Any], metrics: pa.Table) -> None:
        """Replaces what was kept; two commands at once each leave a whole entry.

        What cannot be written (a full disk, a folder to read only) is kept in memory, for `metrics`.
        """
        try:
            self._write(fingerprint, record, metrics)
        except OSError:
            self._unsaved = metrics

    def hold(self, metrics: pa.Table) -> pa.Table:
        """Keeps metrics in memory, for `metrics`: those that a later listing's have replaced."""
        self._unsaved = metrics
        return metrics

    def _write(self, fingerprint: str, record: dict[str, Any], metrics: pa.Table) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry = {"fingerprint": fingerprint, "metrics": f"metrics-{fingerprint[:16]}.arrow", "record": record}
        partial = self.folder / f".{uuid.uuid4().hex}"
        import pyarrow as pa

        # Not by pyarrow.feather, which loads pandas wherever it is installed: half a second for nothing.
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        try:
            with (
                pa.OSFile(str(partial), "wb") as file,
                pa.ipc.new_file(file, metrics.schema, options=options) as writer,
            ):
                writer.write_table(metrics)
            partial.replace(self._metrics(entry))
            partial.write_text(json.dumps(entry))
            partial.replace(self.folder / "record.json")
        finally:
            partial.unlink(missing_ok=True)
        for old in self.folder.glob("metrics-*.arrow"):
            if old != self._metrics(entry):
                old.unlink(missing_ok=True)

    def metrics(self, fingerprint: str) -> pa.Table:
        """The merged metrics that `save` kept."""
        import pyarrow as pa

        if self._unsaved is not None:
            return self._unsaved
        with pa.OSFile(str(self.folder / f"metrics-{fingerprint[:16]}.arrow")) as file:
            return pa.ipc.open_file(file).read_all()

    def _metrics(self, entry: dict[str, Any]) -> Path:
        return self.folder / str(entry["metrics"])
