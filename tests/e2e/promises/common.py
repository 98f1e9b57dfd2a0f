"""What the promises of several scenarios are judged by: files of evidence, and a run's training rows over its attempts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from opd.runs.metrics import METRICS_FILE
from opd.runs.stream import read_streamed
from opd.store.local import LocalStore

Look = Callable[[Path], tuple[bool, str]]
OVERRIDES = Path(__file__).resolve().parents[1] / "overrides"
PLAYED, KILLED = "played.txt", "killed.jsonl"  # what every scenario leaves, what one leaves that kills
MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json", "conversion.json"}  # of a conversion
# What reading evidence raises that is missing or is not what it should be.
UNREADABLE = (OSError, json.JSONDecodeError, yaml.YAMLError, LookupError, ValueError, TypeError, StopIteration)
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


def override(name: str, section: str, key: str) -> Any:
    """What an override file of this cluster sets."""
    return yaml.safe_load((OVERRIDES / name).read_text())[section][key]


MOST_SECONDS_LOST = 90.0
NUM_STEPS = override("six-steps.yaml", "trainer", "total_steps")
NUM_FAULT_STEPS = override("faults.yaml", "trainer", "total_steps")


def judge(promises: dict[str, Look], folder: Path) -> list[Promise]:
    """A scenario's promises on the evidence in a folder; evidence that is missing breaks its promise."""
    found = []
    for promise, look in promises.items():
        try:
            ok, observed = look(folder)
        except UNREADABLE as error:
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


def role_of(pod: dict[str, Any]) -> str:
    """What a run's pod is: head, worker or submitter."""
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def clusters(folder: Path, run: str) -> list[str]:
    """The Ray clusters that the RayJob had, in order."""
    names = [one.get("status", {}).get("rayClusterName", "") for one in changes(folder, run, "rayjobs")]
    return list(dict.fromkeys(filter(None, names)))


def attempts(folder: Path, run: str) -> list[str]:
    """Numbers of the attempts that the store has, in order."""
    return sorted(path.parent.name for path in folder.glob(f"{run}.store/attempts/*/owner.json"))


def metrics_rows(folder: Path, place: str) -> list[dict[str, Any]]:
    """All that an attempt has written, in whatever parts the store has it; none where nothing is there."""
    return [json.loads(line) for line in read_streamed(LocalStore(folder / place), METRICS_FILE).splitlines()]


def training_rows(folder: Path, run: str) -> list[tuple[str, int]]:
    """(attempt, step) of each row that a training step wrote, in the order of attempts."""
    rows = []
    for attempt in attempts(folder, run):
        written = metrics_rows(folder, f"{run}.store/attempts/{attempt}")
        rows += [(attempt, row["step"]) for row in written if "training/global_step" in row]
    return rows


def ended(run: str, wanted: str = "Complete, SUCCEEDED") -> Look:
    """The RayJob's end."""

    def look(folder: Path) -> tuple[bool, str]:
        status = rayjob(folder, run)["status"]
        seen = f"{status['jobDeploymentStatus']}, {status.get('jobStatus', '')}".removesuffix(", ")
        return seen == wanted, seen

    return look


def whole(run: str, *, num_attempts: int, most_recomputed: int, last_step: int = NUM_FAULT_STEPS) -> Look:
    """Every step has one row in each attempt that trained it, none is missing, and few were trained twice."""

    def look(folder: Path) -> tuple[bool, str]:
        rows, numbers = training_rows(folder, run), attempts(folder, run)
        steps = sorted({step for _, step in rows})
        num_doubled = len(rows) - len(set(rows))
        num_recomputed = len(set(rows)) - len(steps)
        of = {number: [step for attempt, step in rows if attempt == number] for number in numbers}
        spans = "; ".join(f"{number}: {_span(of[number])}" for number in numbers)
        num_steps = tree(folder, f"{run}.store/result.json")["steps"]
        is_whole = steps == list(range(1, last_step + 1)) and not num_doubled
        ok = is_whole and num_recomputed <= most_recomputed and len(numbers) == num_attempts
        seen = f"attempts {spans}; {num_recomputed} recomputed, {num_doubled} doubled; result of step {num_steps}"
        return ok and num_steps == last_step, seen

    return look


def _span(steps: list[int]) -> str:
    return f"{min(steps)}-{max(steps)}" if steps else "none"


def log_shows_steps(run: str) -> Look:
    """`opdctl logs -f` shows what the attempts wrote: no step's line twice in one attempt, none missing."""

    def look(folder: Path) -> tuple[bool, str]:
        seen = [int(step) for step, _ in STEP.findall(text(folder, f"{run}.opdctl-logs.txt"))]
        wanted = [step for _, step in training_rows(folder, run)]
        has_ended = not (folder / f"{run}.follow.txt").exists()
        return seen == wanted and has_ended, f"steps {seen}" + ("" if seen == wanted else f", the store has {wanted}")

    return look


def played(folder: Path) -> tuple[bool, str]:
    """Whether the scenario came to its end: what broke off may have left evidence that looks whole."""
    broke_off = folder / "traceback.txt"
    if broke_off.is_file():
        return False, broke_off.read_text().strip().splitlines()[-1]
    return True, f"in {text(folder, PLAYED)} s"


def killed(run: str, part: str, *, during: str) -> Look:
    """A part of the cluster was killed, and started again, while an attempt was training."""

    def look(folder: Path) -> tuple[bool, str]:
        kills = [json.loads(line) for line in text(folder, KILLED).splitlines()]
        [kill] = [one for one in kills if one.get("part") == part]
        rows = metrics_rows(folder, f"{run}.store/attempts/{during}")
        began, ended = (
            tree(folder, f"{run}.store/attempts/{during}/owner.json")["started_at_s"],
            rows[-1]["time"],
        )
        seen = f"process {kill['pid']} after {kill['time'] - began:.0f} s of attempt {during}, then {kill['next_pid']}"
        return began < kill["time"] < ended and kill["pid"] != kill["next_pid"], seen

    return look


def unannounced(run: str) -> Look:
    """The first attempt ended in a pod's loss that no hook announced."""

    def look(folder: Path) -> tuple[bool, str]:
        kills = [json.loads(line) for line in text(folder, KILLED).splitlines()]
        [kill] = [one for one in kills if one.get("pod", "").startswith(f"{run}-")]
        log = text(folder, f"{run}.store/attempts/0001/driver.log")
        is_silent = "asked to save" not in log and kill["num_processes"] > 0
        return is_silent, f"{kill['num_processes']} processes of {kill['pod']} killed, asked to save: {not is_silent}"

    return look


def soon_after(run: str) -> Look:
    """Judge the time from a pod's loss to the end of the next attempt's first step: Ray's own start takes a third of it."""

    def look(folder: Path) -> tuple[bool, str]:
        kills = [json.loads(line) for line in text(folder, KILLED).splitlines()]
        [kill] = [one for one in kills if one.get("pod", "").startswith(f"{run}-")]
        rows = metrics_rows(folder, f"{run}.store/attempts/0002")
        seconds = next(row for row in rows if "training/global_step" in row)["time"] - kill["time"]
        return seconds <= MOST_SECONDS_LOST, f"{seconds:.0f} s"

    return look
