"""The pass rate of every prompt: the file that an evaluation writes and a training run weighs its prompts by."""

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.rows import write_files
from opd.experiment.kinds import canonical_json

SCHEMA = pa.schema(
    [("prompt_id", pa.string()), ("pass_rate", pa.float64()), ("k", pa.int64()), ("checkpoint", pa.string())]
)
PASS_RATES_KEY = "eval/pass_rates.parquet"
"""In the run directory of an evaluation."""
WEIGHTS_KEY = "problems/weights.parquet"
"""In the run directory of a distillation: its prompts' pass rates and weights."""
WEIGHT = "weight"


class PassRate(NamedTuple):
    """One prompt's pass rate."""

    prompt_id: str
    pass_rate: float
    """Share of the k answers that were right; a missing answer, or one whose scorer failed, is wrong."""
    k: int
    checkpoint: str
    """The model that answered: `eval.checkpoint`, else `model.path`."""


def prompt_id(messages: Sequence[Mapping[str, Any]], ground_truth: Any) -> str:
    """Return 32 hex digits that name a prompt with its right answer, in any file and place.

    Args:
        messages: of the prepared row. Fields without a value do not count: files joined together get each other's.
        ground_truth: of the row's `reward_model`; a number counts like its text.
    """
    said = [{name: value for name, value in message.items() if value is not None} for message in messages]
    truth = ground_truth if isinstance(ground_truth, dict | list) else str(ground_truth)
    return hashlib.sha256(canonical_json([said, truth]).encode()).hexdigest()[:32]


def write_pass_rates(path: Path, rates: Iterable[PassRate]) -> None:
    """Write the file whole."""
    write_files({path: [rate._asdict() for rate in rates]}, {}, schema=SCHEMA)


def read_pass_rates(path: Path) -> dict[str, PassRate]:
    """Return each prompt's pass rate by its id, over the answers of all its rows.

    Raises:
        ValueError: the file cannot be read as Parquet, has other columns, or a row without a value.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"it cannot be read as Parquet: {' '.join(str(error).split())}") from error
    if missing := [name for name in SCHEMA.names if name not in table.schema.names]:
        raise ValueError(
            f"it lacks the columns {', '.join(missing)} (it has {', '.join(table.schema.names) or 'none'})"
        )
    rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    for number, row in enumerate(rows, start=1):
        if None in row.values() or row["k"] < 1:
            raise ValueError(f"its row {number} (counted from 1) has an empty field, or no answer: {row}")
    found: dict[str, PassRate] = {}
    for rate in (PassRate(**row) for row in rows):
        if before := found.get(rate.prompt_id):
            k = before.k + rate.k
            rate = rate._replace(pass_rate=(before.pass_rate * before.k + rate.pass_rate * rate.k) / k, k=k)
        found[rate.prompt_id] = rate
    return found


def weights_bytes(rates: Iterable[PassRate], weights: Sequence[float]) -> bytes:
    """Return the file of weights: pass rates with a column `weight`, in the order of the data, prompts of weight 0 included."""
    out = io.BytesIO()
    table = pa.Table.from_pylist([rate._asdict() for rate in rates], schema=SCHEMA)
    pq.write_table(table.append_column(WEIGHT, pa.array(weights, pa.float64())), out, compression="zstd")
    return out.getvalue()
