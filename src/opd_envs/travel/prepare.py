"""`python -m opd_envs.travel.prepare`: planning tasks over the tool database, as rows."""

import argparse
import random
from collections import Counter
from itertools import count, product

from opd.data import command_line
from opd.data.command_line import SetReport
from opd_envs.database_folder import MANIFEST_FILE
from opd_envs.preparing import TRAIN_FILE, Tables, finish, make_parser, manifest_of, val_file
from opd_envs.travel.database import Database, Manifest
from opd_envs.travel.generate import GRADES, generate_task
from opd_envs.travel.words import generated_row

DEFAULT_NUM_TASKS = 500
EXAMPLE = """\
  python -m opd_envs.travel.make_database --out databases/travel
  python -m opd_envs.travel.prepare --database-dir databases/travel
    writes  data/agent_processed/{train,val_travel_en,val_travel_zh}.parquet: five grades, 500 tasks each and language"""
OPTIONS = ("grades", "languages", "num_tasks", "train_ratio", "seed")


def prepare(arguments: argparse.Namespace) -> None:
    """Generate the tasks of every grade and language, split them and write them."""
    manifest_of(arguments.database_dir, Manifest)
    database = Database(arguments.database_dir)
    tables: Tables = {}
    reports = []
    indices = count()
    for language, grade in product(arguments.languages, arguments.grades):
        rng = random.Random(f"split:{arguments.seed}:{language}:{grade}")
        train = set(rng.sample(range(arguments.num_tasks), int(arguments.num_tasks * arguments.train_ratio)))
        num_written: Counter[str] = Counter()
        for number in range(arguments.num_tasks):
            task = generate_task(database, seed=arguments.seed, grade=grade, language=language, number=number)
            split, file = ("train", TRAIN_FILE) if number in train else ("val", val_file(language))
            tables.setdefault(file, []).append(generated_row(task, split=split, index=next(indices)))
            num_written[file] += 1
        path, name = arguments.database_dir / MANIFEST_FILE, f"travel_{language}, grade {grade}"
        reports.append(SetReport(name, path, arguments.num_tasks, Counter(), dict(num_written)))
    finish(arguments, tables, reports, options=OPTIONS)


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
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
