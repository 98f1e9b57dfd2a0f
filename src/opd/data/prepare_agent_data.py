"""`python -m opd.data.prepare_agent_data`: planning tasks over the tool database, and DeepPlanning's queries, as rows."""

import argparse
import json
import os
import random
from collections import Counter
from pathlib import Path

from rich.console import Console

from opd.config.sections import Data
from opd.data import command_line
from opd.data.command_line import SetReport
from opd.data.raw_files import RawFileError
from opd.data.rows import Row, write_files
from opd.envs.database_folder import MANIFEST_FILE, ManifestError, kind_of, read_manifest
from opd.envs.deepplanning import database as benchmark_database
from opd.envs.deepplanning.parts import FOLDER, PUBLISHED_AT
from opd.envs.deepplanning.shopping.rows import shopping
from opd.envs.travel.data import deepplanning
from opd.envs.travel.data.filters import filter_rows, length_rule
from opd.envs.travel.data.generate import GRADES, GeneratedTask, generate_task
from opd.envs.travel.data.rows import AGENT_SCHEMA, generated_row
from opd.envs.travel.database import Database, open_database
from opd.envs.travel.entries import LANGUAGES, Language

SOURCES = ("generated", "deepplanning")
TRAIN_FILE = "train.parquet"
SHOPPING_FILE = "val_shopping.parquet"
SOLUTIONS_FILE = "solutions.jsonl"
DEFAULT_NUM_TASKS = 500
DEFAULT_TRAIN_RATIO = Data.model_fields["train_ratio"].default

EXAMPLE = """\
  python -m opd.agent.make_database --out databases/travel
  python -m opd.data.prepare_agent_data --database-dir databases/travel
    writes  data/agent_processed/{train,val_travel_en,val_travel_zh}.parquet: five grades, 500 tasks each and language
  python -m opd.data.prepare_agent_data --database-dir databases/travel --grades 0 --languages en --num-cities 8
    the simplest grade alone: one price of one place, another in every episode
  python -m opd.data.prepare_agent_data --sources deepplanning --database-dir databases/deepplanning
    reads   data/DeepPlanning/{travelplanning,shoppingplanning}/data/*.json; writes val_shopping.parquet as well
    only queries whose case is in the database (python -m opd.envs.deepplanning import)"""

Tables = dict[str, list[Row]]


def val_file(language: Language) -> str:
    """The travel validation file of a language."""
    return f"val_travel_{language}.parquet"


def prepare(arguments: argparse.Namespace) -> None:
    """Generates or reads, filters, splits and writes as the command line says."""
    console = Console(stderr=True)
    output_dir = arguments.output_dir or arguments.data_dir / "agent_processed"
    tables: Tables = {}
    reports: list[SetReport] = []
    left_out: list[str] = []
    solutions: list[dict[str, object]] = []
    if arguments.sources == "generated":
        reports += _generated(arguments, console, tables, solutions)
    else:
        reports += _published(arguments, tables, left_out)
    if not tables:
        raise RawFileError(f"{output_dir}: no row is left; {'; '.join(left_out)}")
    tables = _filter(arguments, tables, reports)
    for name, rows in tables.items():
        if not rows:
            raise RawFileError(f"{output_dir / name}: no row is left; give more tasks or another --train-ratio")
    options = {
        key: getattr(arguments, key)
        for key in (
            "sources",
            "grades",
            "languages",
            "num_tasks",
            "train_ratio",
            "seed",
            "num_cities",
            "fixed_prices",
            "tools",
        )
    }
    options["left_out"] = left_out
    texts = {output_dir / command_line.SUMMARY_FILE: command_line.summary_json(reports, options)}
    if arguments.solutions:
        texts[output_dir / SOLUTIONS_FILE] = "".join(json.dumps(s, ensure_ascii=False) + "\n" for s in solutions)
    write_files({output_dir / name: rows for name, rows in tables.items()}, texts, schema=AGENT_SCHEMA)
    command_line.print_reports(reports, output_dir, Console())
    for what in left_out:
        print(f"left out: {what}")


def _generated(
    arguments: argparse.Namespace, console: Console, tables: Tables, solutions: list[dict[str, object]]
) -> list[SetReport]:
    """Generates the tasks of every grade and language into `tables`."""
    database = _database(arguments)
    reports = []
    index = 0
    groups = [(language, grade) for language in arguments.languages for grade in arguments.grades]
    with command_line.progress_bar(console) as bar:
        task_id = bar.add_task("tasks", total=len(groups) * arguments.num_tasks)
        for language, grade in groups:
            train = _train_numbers(arguments, language, grade)
            num_written: Counter[str] = Counter()
            num_redrawn = 0
            for number in range(arguments.num_tasks):
                generated = _task(database, arguments, language, grade, number)
                split = "train" if number in train else "val"
                file = TRAIN_FILE if split == "train" else val_file(language)
                row = generated_row(generated, split=split, index=index, only_needed_tools=arguments.tools == "needed")
                tables.setdefault(file, []).append(row)
                solutions.append({**row["extra_info"], "solution": generated.solution})
                num_written[file] += 1
                num_redrawn += generated.num_draws - 1
                index += 1
                bar.advance(task_id)
            notes = [f"{num_redrawn} draws had no solution and were drawn anew"] if num_redrawn else []
            name = f"travel_{language}, grade {grade}"
            path = arguments.database_dir / MANIFEST_FILE
            reports.append(SetReport(name, path, arguments.num_tasks, Counter(), dict(num_written), notes))
    return reports


def _task(
    database: Database, arguments: argparse.Namespace, language: Language, grade: int, number: int
) -> GeneratedTask:
    return generate_task(
        database,
        seed=arguments.seed,
        grade=grade,
        language=language,
        number=number,
        episodes=not arguments.fixed_prices,
        num_cities=arguments.num_cities,
    )


def _train_numbers(arguments: argparse.Namespace, language: Language, grade: int) -> set[int]:
    rng = random.Random(f"split:{arguments.seed}:{language}:{grade}")
    return set(rng.sample(range(arguments.num_tasks), int(arguments.num_tasks * arguments.train_ratio)))


def _database(arguments: argparse.Namespace) -> Database:
    if arguments.database_dir is None:
        raise RawFileError("--database-dir is not set: make a database with opd.agent.make_database and name it here")
    try:
        return open_database(arguments.database_dir)
    except ManifestError as error:
        raise RawFileError(str(error)) from error


def _published(arguments: argparse.Namespace, tables: Tables, left_out: list[str]) -> list[SetReport]:
    """Reads those of DeepPlanning's files that are there into `tables`; what is not prepared goes to `left_out`, with why."""
    reports = []
    left_out += [f"{path}: no such file" for path in deepplanning.absent_files(arguments.data_dir, arguments.languages)]
    first_index = sum(len(rows) for rows in tables.values())
    ratio, seed = arguments.train_ratio, arguments.seed
    cases = _cases(arguments)
    sets = list(
        deepplanning.travel(
            arguments.data_dir,
            languages=arguments.languages,
            train_ratio=ratio,
            seed=seed,
            first_index=first_index,
            cases=cases,
        )
    )
    first_index += sum(len(rows) for _, prepared in sets for rows in prepared.rows.values())
    sets += shopping(arguments.data_dir, first_index=first_index, cases=cases)
    if not sets:
        raise RawFileError(
            f"{arguments.data_dir / FOLDER}: no query file is there. Get them from "
            f"{PUBLISHED_AT}, or leave them out with --sources generated"
        )
    for name, prepared in sets:
        language: Language = "zh" if name.endswith("zh") else "en"
        validation = SHOPPING_FILE if "shopping" in name else val_file(language)
        num_written = {}
        if not any(prepared.rows.values()):
            reasons = ", ".join(f"{reason} {number}" for reason, number in prepared.dropped.items())
            left_out.append(f"{name}: none of its queries can be used ({reasons})")
            prepared = prepared._replace(rows={})
        for split, rows in prepared.rows.items():
            file = TRAIN_FILE if split == "train" else validation
            tables.setdefault(file, []).extend(rows)
            num_written[file] = len(rows)
        raw = prepared.raw
        reports.append(SetReport(name, raw.path, len(raw.records), prepared.dropped, num_written, prepared.notes))
    return reports


def _cases(arguments: argparse.Namespace) -> deepplanning.Cases:
    """The benchmark's database that --database-dir names."""
    folder = arguments.database_dir
    if folder is None or kind_of(folder) != benchmark_database.Manifest.KIND:
        raise RawFileError(
            f"--database-dir {folder or 'is not set'}: DeepPlanning's queries are answered from its own database; import it "
            "with `python -m opd.envs.deepplanning import --out DIR` and name it here"
        )
    try:
        manifest = read_manifest(folder, benchmark_database.Manifest)
    except ManifestError as error:
        raise RawFileError(str(error)) from error
    return deepplanning.Cases(manifest, manifest.case_names, folder)


def _filter(arguments: argparse.Namespace, tables: Tables, reports: list[SetReport]) -> Tables:
    """The rows that are fit to be written; what is dropped gets a report of its own."""
    is_too_long = None if arguments.tokenizer is None else length_rule(arguments.tokenizer, arguments.max_prompt_length)
    filtered = filter_rows(tables, train_file=TRAIN_FILE, is_too_long=is_too_long)
    if filtered.dropped:
        num_before = sum(len(rows) for rows in tables.values())
        written = {name: len(rows) for name, rows in filtered.tables.items()}
        reports.append(SetReport("all, filtered", reports[0].raw_path, num_before, filtered.dropped, written, []))
    return filtered.tables


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = command_line.make_parser(
        module="opd.data.prepare_agent_data",
        description="Prepares planning tasks for multi-turn rollouts with tools: generated ones, and DeepPlanning's.",
        example=EXAMPLE,
    )
    database_dir = os.environ.get("DATABASE_DIR")
    parser.add_argument(
        "--database-dir",
        type=Path,
        default=None if database_dir is None else Path(database_dir),
        metavar="DIR",
        help="the tool database that tasks are generated from, or that the benchmark was imported to (default: $DATABASE_DIR)",
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="default: DATA_DIR/agent_processed")
    parser.add_argument("--sources", choices=SOURCES, default=SOURCES[0], help=f"default: {SOURCES[0]}")
    grades = "; ".join(f"{grade}: {what}" for grade, what in GRADES.items())
    parser.add_argument("--grades", nargs="+", type=int, choices=GRADES, default=list(GRADES), metavar="G", help=grades)
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=list(LANGUAGES), help="default: both")
    parser.add_argument(
        "--num-tasks",
        type=command_line.positive,
        default=DEFAULT_NUM_TASKS,
        metavar="N",
        help=f"of each grade and language (default: {DEFAULT_NUM_TASKS})",
    )
    parser.add_argument(
        "--num-cities", type=command_line.positive, metavar="N", help="ask about the first N cities only (default: all)"
    )
    parser.add_argument(
        "--fixed-prices",
        action="store_true",
        help="the database's own prices; by default each task has prices of its own, so that no answer can be learnt",
    )
    parser.add_argument(
        "--tools",
        choices=("all", "needed"),
        default="all",
        help="what a row offers: all tools, or those that its solution needs (default: all)",
    )
    parser.add_argument(
        "--solutions", action="store_true", help=f"also write {SOLUTIONS_FILE}: an answer that scores 1 a row"
    )
    parser.add_argument(
        "--train-ratio",
        type=command_line.ratio,
        default=os.environ.get("TRAIN_RATIO", str(DEFAULT_TRAIN_RATIO)),
        metavar="R",
        help=f"share of the tasks in the training file (default: $TRAIN_RATIO, else {DEFAULT_TRAIN_RATIO})",
    )
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of tasks and split (default: 42)")
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="drop prompts beyond --max-prompt-length tokens, tools included"
    )
    parser.add_argument("--max-prompt-length", type=int, default=4096, metavar="N", help="in tokens (default: 4096)")
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
