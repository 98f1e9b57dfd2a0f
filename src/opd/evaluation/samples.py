"""One sampled answer and the Parquet file of all of them: what a run generated, to be read again by anyone."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opd.text import storable

GENERATIONS_KEY = "eval/generations.parquet"
"""In the run directory of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer to one problem, scored."""

    run_id: str
    step: int
    """Global training step of the model; 0 for one that was not trained here."""
    data_source: str
    """The prepared row's; where several files hold it, with what tells them apart (`aime24-boxed`, `aime24-dapo`)."""
    problem_index: int
    """`extra_info.index` of the prepared row, or its place in its file: with `data_source`, the problem's identity."""
    sample_index: int
    """Which of the problem's answers, from 0."""
    prompt: str
    """The prompt as text, chat template included."""
    response: str
    pred: str
    """The extracted answer; empty or `[INVALID]` where there is none."""
    ground_truth: str
    score: float
    """The reward."""
    acc: float
    """1.0 right, 0.0 wrong."""
    failed: bool
    """The scorer hung, raised or died: for that reason acc is 0 and score the function's worst."""
    num_tokens: int
    """Tokens of the response."""
    truncated: bool
    """The response ended at the length limit, not by itself."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What the scorer returned beside `score`, `acc` and `pred`: see `further_numbers`."""


SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("step", pa.int64()),
        ("data_source", pa.string()),
        ("problem_index", pa.int64()),
        ("sample_index", pa.int32()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("pred", pa.string()),
        ("ground_truth", pa.string()),
        ("score", pa.float64()),
        ("acc", pa.float64()),
        ("failed", pa.bool_()),
        ("num_tokens", pa.int64()),
        ("truncated", pa.bool_()),
        ("numbers", pa.map_(pa.string(), pa.float64())),
    ]
)
_NUMBERS = "numbers"
_SCORED = ("score", "acc", "pred", "failed")
"""Of a reward row: they have columns of their own."""


def further_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a reward row beside `score`, `acc` and `failed`: booleans as 0 and 1, without texts, NaN and infinities."""
    return {
        storable(str(name)): float(value)
        for name, value in row.items()
        if name not in _SCORED and isinstance(value, int | float) and math.isfinite(value)
    }


def write_generations(path: Path, samples: Iterable[Sample]) -> None:
    """Writes the samples, sorted by data source, problem and sample, and renames the file into place when complete."""
    ordered = sorted(samples, key=lambda sample: (sample.data_source, sample.problem_index, sample.sample_index))
    rows = [asdict(sample) | {_NUMBERS: list(sample.numbers.items())} for sample in ordered]
    write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA))


def write_table(path: Path, table: pa.Table) -> None:
    """Writes a Parquet file beside its place and renames it there when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_generations(path: Path) -> Sequence[Sample]:
    """The samples of a file that `write_generations` wrote.

    Raises:
        ValueError: the file has other columns.
    """
    table = pq.read_table(path)
    if table.schema.names != SCHEMA.names:
        raise ValueError(f"{path}: columns {table.schema.names}, must be {SCHEMA.names}")
    return [Sample(**row | {_NUMBERS: further_numbers(dict(row[_NUMBERS] or ()))}) for row in table.to_pylist()]
