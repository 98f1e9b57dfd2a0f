"""Data files, looked at row by row before anything is started: readable, with prompts and with ground truths that score."""

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opd.agent.environments import TOY_PREFIX
from opd.data.files import Unreadable, files_of, raw_rows
from opd.data.messages import ROLES, part_of
from opd.data.reading import MEND_ROWS, How, RowFault, read_row, value_at
from opd.data.template_probe import said_in
from opd.data.toy import TOY
from opd.experiment.algorithm import MESSAGES, TOOLS
from opd.experiment.errors import Problem
from opd.experiment.sections import Split
from opd.experiment.types import HUB
from opd.inputs.models import address_faults
from opd.rewards.dispatch import misread

MAX_ROWS = 1_000_000
"""Rows of a file that are looked at one by one; the others are read and counted."""
_NUM_SHOWN = 5
_MAX_SHOWN_CHARS = 60
_NAME_COLUMNS = "name the columns: data.columns: {prompt: COLUMN, answer: COLUMN}, or see docs/howto/data.md"
_WRITE_TRUTHS = 'write the answer as text ("5"), leave out rows that have none, name its column (data.columns.answer), or score them by reward.function: custom'
_COMPARES_NUMBERS = ("math_verify", "math_reward")
_FORMS = "the file's path, of the hub {path: OWNER/NAME, split: train}"
_WHOLE, _BY_NAME = Split(), How()


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The files of one data set, and what is asked of their rows."""

    key: str  # of the spec, `data.train` or `data.val`
    files: Sequence[str]  # or folders; a URL, or a bundled name such as `toy://train`, is not looked at
    batch_size: int | None = None  # prompts of a training step; None where any number of rows will do
    max_samples: int | None = None  # rows that are used at most; None means all
    scorer: str = ""  # the built-in scorer that reads the ground truths, as text; empty: another function, or none
    split: Split = _WHOLE  # the part of the rows that is used
    columns: tuple[tuple[str, str], ...] = ()  # (key of the spec, `COLUMN` or `COLUMN.FIELD`) of what else is read
    how: How = _BY_NAME  # layout of the rows
    written: Mapping[str, str] | None = None  # what people wrote for a file that was fetched, by its place here

    def name(self, path: str) -> str:
        """Return the name by which the spec calls a file."""
        return (self.written or {}).get(path, path)


def data_problems(data: Sequence[DataSet]) -> Iterator[Problem]:
    """Yield what is wrong with the data sets; a fault of a file that two of them have, once."""
    found = dict[tuple[str, str, str], Problem]()
    for one in data:
        for problem in _set_problems(one):
            found.setdefault((problem.path.removeprefix(one.key), str(problem.value), problem.rule), problem)
    yield from found.values()


def shapes_of(data: DataSet) -> frozenset[tuple[str, str]]:
    """Return (role, key) of everything that the rows of a data set say, see `said_in`."""
    seen = [_seen(path, data) for path in data.files if "://" not in path]
    return frozenset().union(*(one.shapes for one in seen))


@dataclass
class _Seen:
    """Facts of one file or folder."""

    num_rows: int = 0
    in_part: int = 0
    problems: list[tuple[str, str, str]] = field(default_factory=list)  # (key of the spec or "", rule, fix)
    shapes: set[tuple[str, str]] = field(default_factory=set)


def _seen(path: str, data: DataSet) -> _Seen:
    checks = replace(
        data, key="", files=(), batch_size=None, max_samples=None, written=None
    )  # equal for data sets with equal checks
    try:
        files = files_of(Path(path))
        return _look(tuple((file, (stat := file.stat()).st_mtime_ns, stat.st_size) for file in files), checks)
    except Unreadable as error:
        return _Seen(problems=[("", error.rule, error.fix)])


def _set_problems(data: DataSet) -> Iterator[Problem]:
    for path in data.files:
        for rule, fix in address_faults(path, "no data are", _FORMS, known=(HUB, TOY_PREFIX, TOY)):
            yield Problem(path=data.key, value=data.name(path), rule=rule, fix=fix)
    seen = [_seen(path, data) for path in data.files if "://" not in path]
    names = [data.name(path) for path in data.files if "://" not in path]
    for one, name in zip(seen, names, strict=True):
        for key, rule, fix in one.problems:
            yield Problem(path=key or data.key, value=name, rule=rule, fix=fix)
    # Conversations become rows of their turns, more or fewer; the trainer counts those.
    known = len(seen) == len(data.files) and not any(one.problems for one in seen)
    if data.batch_size is None or not known or data.how.wants == MESSAGES:
        return
    total, in_part = sum(one.num_rows for one in seen), sum(one.in_part for one in seen)
    usable = min(in_part, data.max_samples or in_part)
    if usable < data.batch_size:
        keys = ["data.split"] * (in_part < total) + ["data.max_train_samples"] * (usable < in_part)
        limit = f" (of {total}, by {' and '.join(keys)})" if keys else ""
        rule = f"a step draws that many prompts and fills every batch, but {data.key} has {usable}{limit}"
        fix = f"at most {usable}, with ppo_mini_batch_size a divisor of it, or more prompts"
        yield Problem(path="data.train_batch_size", value=data.batch_size, rule=rule, fix=fix)


@functools.lru_cache(maxsize=64)  # front door and driver look at the same files
def _look(files: tuple[tuple[Path, int, int], ...], checks: DataSet) -> _Seen:
    """Read every row of the files; times of the last change and sizes are there so that another one is not taken for it."""
    seen, found = _Seen(), defaultdict[tuple[str, str, str], list[str]](list)
    truths = defaultdict[str, list[str]](list)
    for file, _, _ in files:
        within = f"{file.name} " if len(files) > 1 else ""
        for number, (place, raw) in enumerate(raw_rows(file, limit=MAX_ROWS)):
            seen.num_rows += 1
            if raw is None:
                seen.in_part += 1  # more than any batch
                continue
            try:
                row = read_row(raw, checks.how, source=file.stem, number=number)
            except RowFault as error:
                found["", str(error), error.fix or _NAME_COLUMNS].append(f"{within}{place}")
                continue
            for fault in _faults(row, checks):
                found[fault].append(f"{within}{place}")
            if checks.scorer and isinstance(truth := _truth(row), str):
                truths[truth].append(f"{within}{place}")
            messages = row[checks.how.wants]
            seen.shapes.update(said_in(messages, row.get(TOOLS) if checks.how.wants == MESSAGES else None))
            split = checks.split
            seen.in_part += split.part is None or part_of(messages, of=split.of, seed=split.seed) == split.part
    for truth in misread(checks.scorer, truths) if truths else ():
        rule = f"have a ground truth that reward.function={checks.scorer} does not find right as its own answer"
        found["", rule, _WRITE_TRUTHS] += [f"{row} {truth[:_MAX_SHOWN_CHARS]!r}" for row in truths[truth]]
    if seen.num_rows > MAX_ROWS * len(files):
        print(f"{files[0][0]}: the first {MAX_ROWS} of {seen.num_rows} rows were looked at one by one", flush=True)
    for (key, rule, fix), rows in found.items():
        shown = ", ".join(rows[:_NUM_SHOWN]) + (", ..." if len(rows) > _NUM_SHOWN else "")
        counted = f"{len(rows)} of {seen.num_rows} rows {rule} ({shown}, counted from 1)"
        seen.problems.append((key, counted, fix))
    return seen


def _truth(row: Mapping[str, Any]) -> Any:
    return (row.get("reward_model") or {}).get("ground_truth")


def _faults(row: Mapping[str, Any], checks: DataSet) -> Iterator[tuple[str, str, str]]:
    """Yield (key, rule, fix) of what is wrong with a row."""
    messages = row[checks.how.wants]
    if unknown := sorted({one["role"] for one in messages} - set(ROLES)):
        yield "", f"have a message of the role {unknown[0]!r}; roles are {', '.join(ROLES)}", MEND_ROWS
    # An assistant's turn may consist of tool calls, and a tool may return nothing.
    silent = any(
        not str(one.get("content") or "").strip()
        and (one["role"] in ("user", "system", "developer") or (one["role"] == "assistant" and len(one) == 2))
        for one in messages
    )
    if not messages or silent:
        yield "", "are empty: what a user, a system or an assistant says is not null or blank", MEND_ROWS
    if checks.how.wants == MESSAGES:
        return
    if not isinstance(row["data_source"], str):
        rule = f"have the data_source {row['data_source']!r}, which is no text"
        yield "", rule, "write a text, by which metrics and scorers go"
    truth = _truth(row)
    if checks.scorer and (rule := _no_text(truth, checks.scorer)):
        rule += f", and reward.function={checks.scorer} reads it as text: right answers would count as wrong"
        yield "", rule, _WRITE_TRUTHS
    for key, name in checks.columns:
        fields = "" if key == "route.by" else ", or COLUMN.FIELD,"
        value = value_at(row, name) if fields else row.get(name)
        if value is None or isinstance(value, Mapping | list):
            rule = f"have no text or number in the column {name!r} (they have {', '.join(row)})"
            yield key, rule, f"name a column{fields} of texts or numbers, or add it to the file"


def _no_text(truth: Any, scorer: str) -> str:
    """Return why a ground truth is no answer as text; empty where it is one."""
    if truth is None or (isinstance(truth, str) and not truth.strip()):
        return "have no ground truth"
    if isinstance(truth, str | int) and not isinstance(truth, bool):
        return ""
    if isinstance(truth, float) and math.isfinite(truth) and scorer in _COMPARES_NUMBERS:
        return ""
    kind = f"the ground truth {truth!r}" if isinstance(truth, float) else f"a {type(truth).__name__} as ground truth"
    return f"have {kind}"
