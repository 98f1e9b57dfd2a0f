"""The prepared files: verl's Parquet columns, one schema for every file, written whole or not at all."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.math_sources import MathSource, Problem, Variant, with_instruction
from opd.experiment.algorithm import MESSAGES

Row = dict[str, Any]

# One schema, extra_info included: verl concatenates the files of a run, which fails where their structs differ.
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("data_source", pa.string()),
                    ("problem_id", pa.string()),
                ]
            ),
        ),
    ]
)

CONVERSATIONS = pa.schema([(MESSAGES, SCHEMA.field("prompt").type)])


def prompt_row(problem: Problem, *, data_source: str, split: str, variant: Variant) -> Row:
    """Return one row in verl's columns."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": with_instruction(problem.question, variant)}],
        "ability": "math",
        "reward_model": {"style": problem.style, "ground_truth": problem.answer},
        "extra_info": {
            "split": split,
            "index": problem.row,
            "data_source": data_source,
            "problem_id": problem.problem_id,
        },
    }


def benchmark_rows(source: MathSource, problems: Sequence[Problem], variant: Variant) -> list[Row]:
    """Return all of a benchmark's rows, in their order."""
    return [prompt_row(problem, data_source=source.data_source, split="test", variant=variant) for problem in problems]


def write_files(tables: Mapping[Path, Sequence[Row]], texts: Mapping[Path, str], *, schema: pa.Schema = SCHEMA) -> None:
    """Write Parquet files and texts next to their final names; rename them only when all are complete on disk."""
    unfinished = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in (*tables, *texts)}
    try:
        for path, temporary in unfinished.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                if path in tables:
                    table = pa.Table.from_pylist(list(tables[path]), schema=schema)
                    pq.write_table(table, file, compression="zstd")
                else:
                    file.write(texts[path].encode())
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in unfinished.items():
            temporary.replace(path)
    finally:
        for temporary in unfinished.values():
            temporary.unlink(missing_ok=True)
