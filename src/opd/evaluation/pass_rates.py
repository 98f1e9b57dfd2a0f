"""The pass rate of every prompt: the file that an evaluation writes and a training run weighs its prompts by."""

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from opd.config import canonical_json
from opd.evaluation.samples import write_table

SCHEMA = pa.schema(
    [("prompt_id", pa.string()), ("pass_rate", pa.float64()), ("k", pa.int64()), ("checkpoint", pa.string())]
)
PASS_RATES_KEY = "eval/pass_rates.parquet"
"""In the run directory of an evaluation."""
WEIGHTS_FOLDER = "problems"
"""In the run directory of a distillation: a file for each time that its prompts got their weights."""
WEIGHT = "weight"


class PassRate(NamedTuple):
    """One prompt's pass rate."""

    prompt_id: str
    """See `prompt_id`."""
    pass_rate: float
    """Share of the k answers that were right; one that never came, or whose scorer failed, is wrong."""
    k: int
    checkpoint: str
    """The model that answered: `eval.checkpoint`, else `model.path`; in the course of a run `RUN/global_step_N`."""


def prompt_id(messages: Sequence[Mapping[str, Any]], ground_truth: Any) -> str:
    """32 hex digits that name a prompt with its right answer, whatever file and place it stands in.

    Args:
        messages: of the prepared row. Fields without a value do not count: several files laid together get each other's.
        ground_truth: of the row's `reward_model`; a number counts like its text.
    """
    said = [{name: value for name, value in message.items() if value is not None} for message in messages]
    truth = ground_truth if isinstance(ground_truth, dict | list) else str(ground_truth)
    return hashlib.sha256(canonical_json([said, truth]).encode()).hexdigest()[:32]


def write_pass_rates(path: Path, rates: Iterable[PassRate]) -> None:
    """Writes the file whole: a reader finds none or all of it."""
    write_table(path, pa.Table.from_pylist([rate._asdict() for rate in rates], schema=SCHEMA))


def read_pass_rates(path: Path) -> dict[str, PassRate]:
    """Each prompt's pass rate by its id; of a prompt that stands in several rows, over all their answers.

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
    rates = []
    for number, row in enumerate(table.select(SCHEMA.names).cast(SCHEMA).to_pylist()):
        if None in row.values() or row["k"] < 1:
            raise ValueError(f"its row {number} (counted from 0) has an empty field, or no answer: {row}")
        rates.append(PassRate(**row))
    return by_prompt(rates)


def by_prompt(rates: Iterable[PassRate]) -> dict[str, PassRate]:
    """Each prompt's pass rate by its id; of a prompt with several of them, over all their answers."""
    found: defaultdict[str, list[PassRate]] = defaultdict(list)
    for rate in rates:
        found[rate.prompt_id].append(rate)
    return {name: _together(same) for name, same in found.items()}


def weights_key(step: int) -> str:
    """Where the weights that a run trains with from `step` on lie in its directory."""
    return f"{WEIGHTS_FOLDER}/step-{step:06d}.parquet"


def weights_bytes(rates: Iterable[PassRate], weights: Sequence[float]) -> bytes:
    """The content of such a file: pass rates with a column `weight`, in the order of the data, left-out prompts included."""
    table = pa.Table.from_pylist([rate._asdict() for rate in rates], schema=SCHEMA)
    out = io.BytesIO()
    pq.write_table(table.append_column(WEIGHT, pa.array(weights, pa.float64())), out, compression="zstd")
    return out.getvalue()


def _together(rates: list[PassRate]) -> PassRate:
    if len(rates) == 1:
        return rates[0]
    k = sum(rate.k for rate in rates)
    return rates[0]._replace(pass_rate=sum(rate.pass_rate * rate.k for rate in rates) / k, k=k)
