"""One sampled answer, and the Parquet file of all answers of a run."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.rows import write_files
from opd.text import storable

GENERATIONS_KEY = "eval/generations.parquet"
"""In the run directory of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer to one problem, scored; a column of the file for each field, in this order."""

    run_id: str
    step: int
    """Global training step of the model; 0 for a model that was not trained here."""
    data_source: str
    """The prepared row's; where several files hold it, with the part of their paths that differs (`aime24-boxed`)."""
    problem_index: int
    """`extra_info.index` of the prepared row, or its place in its file; unique within the data source."""
    sample_index: int
    """The answer's number among the problem's answers, from 0."""
    prompt: str
    """The prompt as text, chat template included."""
    response: str
    pred: str
    """The extracted answer; empty or `[INVALID]` without one."""
    ground_truth: str
    score: float
    """The reward."""
    acc: float
    """1.0 right, 0.0 wrong."""
    failed: bool
    """True if the scorer hung, raised or died; acc is then 0 and score the function's worst."""
    num_tokens: int
    """Tokens of the response."""
    truncated: bool
    """True if the response ended at the length limit."""
    response_ids: Sequence[int] = field(default_factory=lambda: array("i"))
    """Tokens of the response, its end included; empty where the run keeps no texts."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the scorer: see `further_numbers`."""


_NUMBERS = "numbers"
_ARROW: dict[Any, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_ARROW[Sequence[int]] = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [(name, _ARROW.get(kind, pa.map_(pa.string(), pa.float64()))) for name, kind in get_type_hints(Sample).items()]
)
_SCORED = ("score", "acc", "pred", "failed")
"""Keys of a reward row that have columns of their own."""


def further_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a reward row except `score`, `acc` and `failed`; booleans become 0 and 1."""
    return {
        storable(str(name)): float(value)
        for name, value in row.items()
        if name not in _SCORED and isinstance(value, int | float) and math.isfinite(value)
    }


def write_generations(path: Path, samples: Iterable[Sample]) -> None:
    """Write the samples, sorted by data source, problem and sample."""
    ordered = sorted(samples, key=lambda sample: (sample.data_source, sample.problem_index, sample.sample_index))
    write_files({path: list(map(as_row, ordered))}, {}, schema=SCHEMA)


def as_row(sample: Sample) -> dict[str, Any]:
    """Return the sample's row of `SCHEMA`."""
    return asdict(sample) | {_NUMBERS: list(sample.numbers.items())}


def read_generations(content: bytes) -> Sequence[Sample]:
    """Return the samples of a file that `write_generations` wrote, also where more columns follow.

    Raises:
        ValueError: it is no Parquet file, or has other columns.
    """
    names = pq.read_schema(pa.BufferReader(content)).names
    if names[: len(SCHEMA.names)] != SCHEMA.names:
        raise ValueError(f"columns {names}, must be {SCHEMA.names}")
    table = pq.read_table(pa.BufferReader(content), columns=SCHEMA.names)
    return [
        Sample(
            **row
            | {
                _NUMBERS: further_numbers(dict(row[_NUMBERS] or ())),
                "response_ids": array("i", row["response_ids"] or ()),
            }
        )
        for row in table.to_pylist()
    ]
