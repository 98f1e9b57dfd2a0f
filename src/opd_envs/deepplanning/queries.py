"""DeepPlanning's published travel queries as tasks over the imported database."""

import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from opd.data.raw_files import RawFileError
from opd.data.rows import Row
from opd_envs.database_folder import FolderManifest
from opd_envs.deepplanning.layout import case_name
from opd_envs.deepplanning.parts import PUBLISHED_AT, QUERY_FILES, SHOPPING_PARTS, Part
from opd_envs.deepplanning.report_form import REPORT_FORM
from opd_envs.deepplanning.task import BenchmarkFacts, BenchmarkTrip, EntryKind, entry_kind
from opd_envs.rows import agent_row
from opd_envs.travel.entries import Language
from opd_envs.travel.task import task_text

_NAME_FIELDS: Mapping[EntryKind, tuple[str, ...]] = {
    "hotel": ("hotel_name",),
    "restaurant": ("restaurant_name",),
    "attraction": ("attraction_names",),
    "train": ("outbound_train_no", "inbound_train_no"),
    "flight": ("outbound_flight_no", "inbound_flight_no"),
}
"""Fields of a constraint that name what a right plan holds. `attraction_name` is not one: it says near what."""
_BUDGET = "budget_constraint"


class Raw(NamedTuple):
    """One published file."""

    path: Path
    records: list[dict[str, Any]]

    def error(self, row: int, column: str, rule: str) -> RawFileError:
        """The error for one cell; `row` counts from 0 here and from 1 in the message."""
        found = json.dumps(self.records[row].get(column), ensure_ascii=False)[:120]
        return RawFileError(f"{self.path}: row {row + 1}, column {column!r}: {rule}, found {found}")


class Prepared(NamedTuple):
    """The rows of one published file by split."""

    raw: Raw
    rows: dict[str, list[Row]]
    dropped: Counter[str]
    notes: list[str]


def read_json(path: Path) -> Raw:
    """Reads a published file: one JSON array of objects.

    Raises:
        RawFileError: missing, no JSON, or no array of objects.
    """
    if not path.is_file():
        raise RawFileError(f"{path}: no such file. Get it from {PUBLISHED_AT}")
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RawFileError(f"{path}: not JSON ({error})") from error
    if not isinstance(records, list) or not records:
        raise RawFileError(f"{path}: must be a JSON array that is not empty")
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise RawFileError(f"{path}: row {row + 1}: must be an object")
    return Raw(path, records)


class Cases(NamedTuple):
    """The imported database that the queries are to be answered from."""

    manifest: FolderManifest
    names: Collection[str]
    """Its cases, as `case_name` names them."""
    folder: Path


def absent_files(data_dir: Path, languages: Sequence[Language]) -> list[Path]:
    """The query files of these languages and of shopping that are not there: their sets are left out."""
    parts: list[Part] = [*languages, *SHOPPING_PARTS.values()]
    return [path for part in parts if not (path := data_dir / QUERY_FILES[part]).is_file()]


def travel(
    data_dir: Path,
    *,
    languages: Sequence[Language],
    train_ratio: float,
    seed: int,
    cases: Cases,
) -> Iterator[tuple[str, Prepared]]:
    """The travel queries of each language whose file is there: (set name, rows by `train` and `val`).

    A query and its translation have the same id and go to the same side. Queries whose case `cases` lacks are dropped.

    Raises:
        RawFileError: a file that is missing or not in its published layout.
    """
    index = 0
    for language in languages:
        path = data_dir / QUERY_FILES[language]
        if not path.is_file():
            continue
        raw = read_json(path)
        train_ids = _train_ids(raw, train_ratio, seed)
        rows: dict[str, list[Row]] = {"train": [], "val": []}
        dropped: Counter[str] = Counter()
        unchecked: Counter[str] = Counter()
        seen: set[str] = set()
        for row in range(len(raw.records)):
            query, identity = text_of(raw, row, "query"), text_of(raw, row, "id")
            task = _trip(raw, row, unchecked)
            case_id = case_name(language, identity)
            reason = "duplicate_query" if query in seen else "nothing_to_check" if task is None else None
            if reason is None and case_id not in cases.names:
                reason = "no_case"
            seen.add(query)
            if reason is not None or task is None:
                dropped[reason or ""] += 1
                continue
            split = "train" if identity in train_ids else "val"
            rows[split].append(
                agent_row(
                    task_text(task),
                    [
                        {"role": "system", "content": REPORT_FORM[language]},
                        {"role": "user", "content": query},
                    ],
                    data_source=f"deepplanning_travel_{language}",
                    split=split,
                    index=index,
                    problem_id=f"deepplanning-travel-{language}-{identity}",
                    language=language,
                    database_id=cases.manifest.database_id,
                    case_id=case_id,
                )
            )
            index += 1
        notes = [
            f"{sum(unchecked.values())} constraints are of no kind that is known and are not checked: {dict(unchecked)}"
        ]
        yield f"deepplanning_travel_{language}", Prepared(raw, rows, dropped, notes if unchecked else [])


def _train_ids(raw: Raw, train_ratio: float, seed: int) -> set[str]:
    """Ids on the training side: drawn from the sorted ids alone, so that both languages agree."""
    ids = sorted({text_of(raw, row, "id") for row in range(len(raw.records))})
    random.Random(seed).shuffle(ids)
    return set(ids[: int(len(ids) * train_ratio)])


def text_of(raw: Raw, row: int, column: str) -> str:
    """A text of a record.

    Raises:
        RawFileError: there is none, or an empty one.
    """
    value = raw.records[row].get(column)
    if not isinstance(value, str) or not value.strip():
        raise raw.error(row, column, "must be a text that is not empty")
    return value


def _trip(raw: Raw, row: int, unchecked: Counter[str]) -> BenchmarkTrip | None:
    """The task of a travel query, or None where none of its constraints can be checked."""
    meta = raw.records[row].get("meta_info")
    if not isinstance(meta, dict) or not isinstance(meta.get("hard_constraints"), dict):
        raise raw.error(row, "meta_info", "must be an object with hard_constraints")
    num_days = meta.get("days")
    if not isinstance(num_days, int) or num_days < 1:
        raise raw.error(row, "meta_info", "must have days, a whole number of at least 1")
    constraints = dict(meta["hard_constraints"])
    budget = constraints.pop(_BUDGET, meta.get(_BUDGET))  # one published row has it a level higher
    required: dict[str, tuple[str, ...]] = {}
    for name, constraint in constraints.items():
        if not isinstance(constraint, dict):
            raise raw.error(row, "meta_info", f"hard_constraints.{name} must be an object")
        kind = entry_kind(name)
        if kind is None:
            unchecked[name] += 1
            continue
        entries = tuple(entry for field, entry in named_entries(constraint) if field in _NAME_FIELDS[kind])
        if not entries:
            raise raw.error(
                row, "meta_info", f"hard_constraints.{name} must name an entry in {' or '.join(_NAME_FIELDS[kind])}"
            )
        required[name] = entries
    if not required and budget is None:
        return None
    return BenchmarkTrip(
        num_days=num_days,
        max_budget=None if budget is None else float(budget["max_budget"]),
        required_names=required,
        facts=_facts(raw, row, meta),
    )


def _facts(raw: Raw, row: int, meta: Mapping[str, Any]) -> BenchmarkFacts:
    """Party and origin of a query; the benchmark takes one room or traveller where the query gives no number."""
    try:
        return BenchmarkFacts(
            origin=meta.get("org"),  # type: ignore[arg-type]
            num_people=meta.get("people_number", 1),
            num_rooms=meta.get("room_number", 1),
            depart_weekday=meta.get("depart_weekday"),
        )
    except ValidationError as error:
        raise raw.error(
            row,
            "meta_info",
            "must have org (a text) and whole numbers people_number, room_number and depart_weekday (1 to 7)",
        ) from error


def named_entries(constraint: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, name) of each entry that a published constraint names."""
    for field in chain.from_iterable(_NAME_FIELDS.values()):
        value = constraint.get(field)
        if isinstance(value, list):
            yield from ((field, str(name)) for name in value)
        elif value is not None:
            yield field, str(value)
