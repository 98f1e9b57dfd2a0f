"""`python -m opd_envs.travel.prepare`: planning tasks over the tool database, as rows."""

import argparse
import random
from collections import Counter

from opd.data import command_line
from opd.data.command_line import SetReport
from opd.data.raw_files import RawFileError
from opd_envs.database_folder import MANIFEST_FILE, ManifestError
from opd_envs.preparing import TRAIN_FILE, Tables, finish, json_lines, make_parser, val_file
from opd_envs.travel.database import Database, open_database
from opd_envs.travel.entries import Language
from opd_envs.travel.generate import GRADES, generate_task
from opd_envs.travel.words import generated_row

SOLUTIONS_FILE = "solutions.jsonl"
DEFAULT_NUM_TASKS = 500
EXAMPLE = """\
  python -m opd_envs.travel.make_database --out databases/travel
  python -m opd_envs.travel.prepare --database-dir databases/travel
    writes  data/agent_processed/{train,val_travel_en,val_travel_zh}.parquet: five grades, 500 tasks each and language
  python -m opd_envs.travel.prepare --database-dir databases/travel --grades 0 --languages en --num-cities 8
    the simplest grade alone: one price of one place, another in every episode"""
OPTIONS = ("grades", "languages", "num_tasks", "train_ratio", "seed", "num_cities", "fixed_prices", "tools")


def prepare(arguments: argparse.Namespace) -> None:
    """Generate the tasks of every grade and language, split them and write them."""
    database = _database(arguments)
    tables: Tables = {}
    solutions: list[dict[str, object]] = []
    reports = []
    groups = [(language, grade) for language in arguments.languages for grade in arguments.grades]
    for language, grade in groups:
        train = _train_numbers(arguments, language, grade)
        num_written: Counter[str] = Counter()
        num_redrawn = 0
        for number in range(arguments.num_tasks):
            generated = generate_task(
                database, seed=arguments.seed, grade=grade, language=language, number=number,
                episodes=not arguments.fixed_prices, num_cities=arguments.num_cities,
            )  # fmt: skip
            split, file = ("train", TRAIN_FILE) if number in train else ("val", val_file(language))
            only_needed = arguments.tools == "needed"
            row = generated_row(generated, split=split, index=len(solutions), only_needed_tools=only_needed)
            tables.setdefault(file, []).append(row)
            solutions.append({**row["extra_info"], "solution": generated.solution})
            num_written[file] += 1
            num_redrawn += generated.num_draws - 1
        notes = [f"{num_redrawn} draws had no solution and were drawn anew"] if num_redrawn else []
        path = arguments.database_dir / MANIFEST_FILE
        name = f"travel_{language}, grade {grade}"
        reports.append(SetReport(name, path, arguments.num_tasks, Counter(), dict(num_written), notes))
    texts = {SOLUTIONS_FILE: json_lines(solutions)} if arguments.solutions else {}
    finish(arguments, tables, reports, toolset_of=lambda _: "travel", options=OPTIONS, texts=texts)


def _train_numbers(arguments: argparse.Namespace, language: Language, grade: int) -> set[int]:
    rng = random.Random(f"split:{arguments.seed}:{language}:{grade}")
    return set(rng.sample(range(arguments.num_tasks), int(arguments.num_tasks * arguments.train_ratio)))


def _database(arguments: argparse.Namespace) -> Database:
    if arguments.database_dir is None:
        raise RawFileError(
            "--database-dir is not set: make a database with opd_envs.travel.make_database and name it here"
        )
    try:
        return open_database(arguments.database_dir)
    except ManifestError as error:
        raise RawFileError(str(error)) from error


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = make_parser(
        module="opd_envs.travel.prepare",
        description="Prepares planning tasks for multi-turn rollouts with the travel tools.",
        example=EXAMPLE,
    )
    grades = "; ".join(f"{grade}: {what}" for grade, what in GRADES.items())
    parser.add_argument("--grades", nargs="+", type=int, choices=GRADES, default=list(GRADES), metavar="G", help=grades)
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
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
