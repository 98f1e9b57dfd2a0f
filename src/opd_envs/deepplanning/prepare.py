"""`python -m opd_envs.deepplanning.prepare`: the published queries as rows over the imported database."""

import argparse
import random
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any

from pydantic import ValidationError

from opd.data import command_line
from opd.data.command_line import SetReport
from opd.data.raw_files import RawFile, RawFileError, read_raw
from opd_envs.deepplanning.database import Manifest
from opd_envs.deepplanning.layout import FOLDER, PUBLISHED_AT, QUERY_FILES, case_name
from opd_envs.deepplanning.task import BenchmarkTrip, EntryKind, entry_kind
from opd_envs.deepplanning.words import REPORT_FORM
from opd_envs.preparing import TRAIN_FILE, Tables, finish, make_parser, manifest_of, val_file
from opd_envs.rows import agent_row
from opd_envs.scoring import task_text

EXAMPLE = """\
  python -m opd_envs.deepplanning.make_database --out databases/deepplanning
  python -m opd_envs.deepplanning.prepare --database-dir databases/deepplanning
    reads   data/DeepPlanning/travelplanning/data/travelplanning_query_{en,zh}.json, or one of them
    writes  data/agent_processed/{train,val_travel_en,val_travel_zh}.parquet: the queries whose case is in the database"""
OPTIONS = ("languages", "train_ratio", "seed")
_NAME_FIELDS: Mapping[EntryKind, tuple[str, ...]] = {
    "hotel": ("hotel_name",),
    "restaurant": ("restaurant_name",),
    "attraction": ("attraction_names",),
    "train": ("outbound_train_no", "inbound_train_no"),
    "flight": ("outbound_flight_no", "inbound_flight_no"),
}
"""Fields of a constraint whose entries a right plan holds. `attraction_name` is not among them: it names a neighbour."""
_BUDGET = "budget_constraint"


def prepare(arguments: argparse.Namespace) -> None:
    """Read the query files that are there, split the queries and write the rows."""
    manifest = manifest_of(arguments.database_dir, Manifest)
    tables: Tables = {}
    reports: list[SetReport] = []
    left_out = []
    indices = count()
    for language in arguments.languages:
        path = arguments.data_dir / QUERY_FILES[language]
        if not path.is_file():
            left_out.append(f"{path}: no such file")
            continue
        raw, name = read_raw(path, source=PUBLISHED_AT), f"deepplanning_travel_{language}"
        train_ids = _train_ids(raw, arguments.train_ratio, arguments.seed)
        dropped: Counter[str] = Counter()
        unchecked: Counter[str] = Counter()
        num_written: Counter[str] = Counter()
        for row in range(len(raw.records)):
            task, query, identity = _trip(raw, row, unchecked), raw.text(row, "query"), raw.text(row, "id")
            if task is None or case_name(language, identity) not in manifest.case_names:
                dropped["nothing_to_check" if task is None else "no_case"] += 1
                continue
            split, file = ("train", TRAIN_FILE) if identity in train_ids else ("val", val_file(language))
            prepared = agent_row(
                task_text(task),
                [{"role": "system", "content": REPORT_FORM[language]}, {"role": "user", "content": query}],
                data_source=name,
                split=split,
                index=next(indices),
                problem_id=f"deepplanning-travel-{language}-{identity}",
                language=language,
                database_id=manifest.database_id,
                case_id=case_name(language, identity),
            )
            tables.setdefault(file, []).append(prepared)
            num_written[file] += 1
        if not num_written:
            reasons = ", ".join(f"{reason} {number}" for reason, number in dropped.items())
            left_out.append(f"{name}: none of its queries can be used ({reasons})")
        notes = [f"constraints of an unknown kind are not checked: {dict(unchecked)}"] if unchecked else []
        reports.append(SetReport(name, path, len(raw.records), dropped, dict(num_written), notes))
    if not reports:
        raise RawFileError(f"{arguments.data_dir / FOLDER}: no query file is there. Get them from {PUBLISHED_AT}")
    finish(arguments, tables, reports, options=OPTIONS, left_out=left_out)


def _train_ids(raw: RawFile, train_ratio: float, seed: int) -> set[str]:
    """Draw the ids on the training side from the sorted ids alone: a query and its translation are on the same side."""
    ids = sorted({raw.text(row, "id") for row in range(len(raw.records))})
    random.Random(seed).shuffle(ids)
    return set(ids[: int(len(ids) * train_ratio)])


def _trip(raw: RawFile, row: int, unchecked: Counter[str]) -> BenchmarkTrip | None:
    """Return the task of a query; None where none of its constraints can be checked.

    Raises:
        RawFileError: the query is not in the published layout.
    """
    meta = raw.records[row].get("meta_info")
    if not isinstance(meta, dict) or not isinstance(meta.get("hard_constraints"), dict):
        raise raw.error(row, "meta_info", "must be an object with hard_constraints")
    constraints = dict(meta["hard_constraints"])
    budget = constraints.pop(_BUDGET, meta.get(_BUDGET))  # one published row has it a level higher
    required: dict[str, tuple[str, ...]] = {}
    for name, constraint in constraints.items():
        kind = entry_kind(name)
        if kind is None:
            unchecked[name] += 1
            continue
        required[name] = _named(constraint, kind)
        if not required[name]:
            fields = " or ".join(_NAME_FIELDS[kind])
            raise raw.error(row, "meta_info", f"hard_constraints.{name} must name an entry in {fields}")
    if not required and budget is None:
        return None
    try:
        return BenchmarkTrip(
            origin=meta.get("org"),  # type: ignore[arg-type]
            num_days=meta.get("days"),  # type: ignore[arg-type]
            num_people=meta.get("people_number", 1),
            num_rooms=meta.get("room_number", 1),
            depart_weekday=meta.get("depart_weekday"),
            max_budget=None if budget is None else budget["max_budget"],
            required_names=required,
        )
    except (ValidationError, KeyError, TypeError) as error:
        raise raw.error(
            row,
            "meta_info",
            "must have org (a text), whole numbers days, people_number, room_number and depart_weekday (1 to 7), and a "
            f"number max_budget in {_BUDGET}",
        ) from error


def _named(constraint: Any, kind: EntryKind) -> tuple[str, ...]:
    """Return the entries that a published constraint names."""
    values = [constraint.get(field) for field in _NAME_FIELDS[kind]] if isinstance(constraint, dict) else []
    lists = [value if isinstance(value, list) else [value] for value in values if value is not None]
    return tuple(str(name) for names in lists for name in names)


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = make_parser(
        module="opd_envs.deepplanning.prepare",
        description="Prepares DeepPlanning's travel queries for multi-turn rollouts with its tools.",
        example=EXAMPLE,
    )
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
