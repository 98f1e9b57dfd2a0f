"""What the promises of several scenarios are judged by: files of evidence, and a run's training rows over its attempts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

Look = Callable[[Path], tuple[bool, str]]
NUM_STEPS = 6  # of every run that trains here: tests/e2e/overrides
STEP = re.compile(r"^\S* step +(\d+)/(\d+)  loss ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One promise and what was seen of it."""

    promise: str
    observed: str
    ok: bool

    def row(self, scenario: str, seconds: float) -> dict[str, Any]:
        """A row of summary.json."""
        return {"scenario": scenario, "seconds": seconds, **asdict(self)}


def judge(promises: dict[str, Look], folder: Path) -> list[Promise]:
    """A scenario's promises on the evidence in a folder; evidence that is missing breaks its promise."""
    found = []
    for promise, look in promises.items():
        try:
            ok, observed = look(folder)
        except (OSError, json.JSONDecodeError, yaml.YAMLError, LookupError, ValueError, TypeError) as error:
            ok, observed = False, f"the evidence cannot be read: {type(error).__name__}: {error}"
        found.append(Promise(promise=promise, observed=observed, ok=ok))
    return found


def tree(folder: Path, name: str) -> Any:
    """A file of JSON."""
    return json.loads((folder / name).read_text())


def text(folder: Path, name: str) -> str:
    """A file of text."""
    return (folder / name).read_text(errors="replace")


def rayjob(folder: Path, run: str) -> dict[str, Any]:
    """The RayJob at the end."""
    return yaml.safe_load(text(folder, f"{run}.rayjob.yaml")) or {}


def changes(folder: Path, run: str, what: str) -> Iterator[dict[str, Any]]:
    """The objects of a recorded watch (`pods`, `rayjobs`) at each change, in order; a cut last one is left out."""
    decoder, rest = json.JSONDecoder(), text(folder, f"{run}.{what}.watch").lstrip()
    while rest:
        try:
            event, end = decoder.raw_decode(rest)
        except json.JSONDecodeError:
            return
        yield event["object"]
        rest = rest[end:].lstrip()


def clusters(folder: Path, run: str) -> list[str]:
    """The Ray clusters that the RayJob had, in order."""
    names = [one.get("status", {}).get("rayClusterName", "") for one in changes(folder, run, "rayjobs")]
    return list(dict.fromkeys(filter(None, names)))


def attempts(folder: Path, run: str) -> list[str]:
    """Numbers of the attempts that the store has, in order."""
    return sorted(path.parent.name for path in folder.glob(f"{run}.store/attempts/*/owner.json"))


def training_rows(folder: Path, run: str) -> list[tuple[str, int]]:
    """(attempt, step) of each row that a training step wrote, in the order of attempts."""
    rows = []
    for attempt in attempts(folder, run):
        path = folder / f"{run}.store/attempts/{attempt}/metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        rows += [(attempt, row["step"]) for row in map(json.loads, lines) if "training/global_step" in row]
    return rows


def ended(run: str, wanted: str = "Complete, SUCCEEDED") -> Look:
    """The RayJob's end."""

    def look(folder: Path) -> tuple[bool, str]:
        status = rayjob(folder, run)["status"]
        seen = f"{status['jobDeploymentStatus']}, {status.get('jobStatus', '')}".removesuffix(", ")
        return seen == wanted, seen

    return look


def whole(run: str, *, num_attempts: int, most_recomputed: int) -> Look:
    """Every step has one row in each attempt that trained it, none is missing, and few were trained twice."""

    def look(folder: Path) -> tuple[bool, str]:
        rows, numbers = training_rows(folder, run), attempts(folder, run)
        steps = sorted({step for _, step in rows})
        num_doubled = len(rows) - len(set(rows))
        num_recomputed = len(set(rows)) - len(steps)
        of = {number: [step for attempt, step in rows if attempt == number] for number in numbers}
        spans = "; ".join(f"{number}: {_span(of[number])}" for number in numbers)
        num_steps = tree(folder, f"{run}.store/result.json")["steps"]
        is_whole = steps == list(range(1, NUM_STEPS + 1)) and not num_doubled
        ok = is_whole and num_recomputed <= most_recomputed and len(numbers) == num_attempts
        seen = f"attempts {spans}; {num_recomputed} recomputed, {num_doubled} doubled; result of step {num_steps}"
        return ok and num_steps == NUM_STEPS, seen

    return look


def _span(steps: list[int]) -> str:
    return f"{min(steps)}-{max(steps)}" if steps else "none"


def log_shows_steps(run: str) -> Look:
    """`opdctl logs -f` shows what the attempts wrote: no step's line twice in one attempt, none missing."""

    def look(folder: Path) -> tuple[bool, str]:
        seen = [int(step) for step, _ in STEP.findall(text(folder, f"{run}.opdctl-logs.txt"))]
        wanted = [step for _, step in training_rows(folder, run)]
        return seen == wanted, f"steps {seen}" + ("" if seen == wanted else f", the store has {wanted}")

    return look
