"""metrics.jsonl: one JSON object a line and step, and the merge of all attempts into one history.

A line is `{"step": int, "time": Unix seconds, "<metric>": number, ...}`. JSON has no NaN or infinity: the file holds
the strings "NaN", "Infinity" and "-Infinity". Readers turn them into floats; no other string is a value.
"""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opd.runs.attempts import attempt_numbers, attempt_prefix
from opd.runs.stream import read_streamed
from opd.store.base import Store
from opd.store.durable import fsync_folder, make_folder

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
Row = dict[str, Any]
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
RESERVED_KEYS = ("step", "time")
NUM_EXAMPLES = 3


class MetricsWriter:
    """Appends rows to one attempt's file, each with a single write, so that a kill tears at most the last line."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None
        self._torn = False
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one row of numbers (also 0-d arrays and tensors); drop other values, with one warning a key."""
        row: Row = {"step": step, "time": round(time.time(), 3)}
        if not _is_step(step):
            raise ValueError(f"metrics step {step!r}: a global step is an integer >= 0")
        if taken := [key for key in RESERVED_KEYS if key in metrics]:
            raise ValueError(f"metric {taken[0]!r}: the name is the row's own; use another one")
        for key, value in metrics.items():
            number = as_number(value)
            if number is not None:
                row[key] = number
            elif key not in self._warned:
                self._warned.add(key)
                logger.warning("metric %r: %s is no number; dropped from now on", key, type(value).__name__)
        self._append((json.dumps(row, allow_nan=False) + "\n").encode())

    def flush(self) -> None:
        """Sync every row written so far, and the file's name."""
        with self._lock:
            if self._descriptor is not None:
                os.fsync(self._descriptor)
                fsync_folder(self.path.parent)

    def close(self) -> None:
        self.flush()
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._descriptor is None:
                make_folder(self.path.parent)
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            # After a write that failed half way (full disk) the next row must not continue the torn line.
            data = b"\n" + line if self._torn else line
            self._torn = True
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                raise OSError(error.errno, f"metrics row not written: {error.strerror}", str(self.path)) from error
            self._torn = False


def as_number(value: Any) -> int | float | str | None:
    """Return the JSON form of a scalar, None for any other value."""
    if not isinstance(value, int | float | bool) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, float):
        return None
    return float(value) if math.isfinite(value) else json.dumps(value)  # NaN, Infinity, -Infinity


def as_float(value: Any) -> float:
    """Return the float of a value's JSON form."""
    return NON_FINITE[value] if isinstance(value, str) else float(value)


def parse_metrics(data: bytes, *, attempt: int) -> tuple[list[Row], str]:
    """Return rows of one attempt's file in file order, and a text about lines that are no row, empty without any."""
    rows, bad = list[Row](), list[str]()
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if (row := _parse_row(line)) is not None:
            rows.append(row)
        elif line.strip():
            bad.append(f"line {number} is {'half-written' if number == len(lines) else 'corrupt'}: {line[:60]!r}")
    summary = f"attempt {attempt}: {len(rows)} rows, {len(bad)} lines skipped"
    return rows, "\n  ".join([summary, *bad[:NUM_EXAMPLES]]) if bad else ""


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not _is_step(row.get("step")):
        return None
    if b'"NaN"' in line or b'Infinity"' in line:
        row = {key: NON_FINITE.get(value, value) if isinstance(value, str) else value for key, value in row.items()}
    return row


def merge_attempts(attempts: Mapping[int, Iterable[Row]]) -> list[Row]:
    """Return one row a step, ascending: of every (step, key) the value of the latest attempt, in it of the latest line.

    A resumed attempt may log fewer keys at a step that an earlier attempt has trained: the earlier keys stay. Steps that
    no later attempt reached again stay, too.
    """
    merged: dict[int, Row] = {}
    for attempt in sorted(attempts):
        for row in attempts[attempt]:
            merged.setdefault(row["step"], {}).update(row)
    return [merged[step] for step in sorted(merged)]


def read_metrics(stores: Sequence[Store]) -> list[Row]:
    """Return the merged rows of all attempts of a run, of each the longest copy in these places; log lines that are no row."""
    rows: dict[int, list[Row]] = {}
    for attempt in sorted({number for store in stores for number in attempt_numbers(store)}):
        copies = [read_streamed(store, f"{attempt_prefix(attempt)}/{METRICS_FILE}") for store in stores]
        rows[attempt], skipped = parse_metrics(max(copies, key=len), attempt=attempt)
        if skipped:
            logger.warning("%s", skipped)
    return merge_attempts(rows)
