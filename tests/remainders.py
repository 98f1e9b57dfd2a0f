"""The toy's training file with a column by which its problems are routed to teachers."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.toy.task import write_parquet


def write_remainders(folder: Path, *, seed: int) -> Path:
    """Write `train.parquet`, with the column `remainder`: what a problem's first operand leaves when divided by 4."""
    train, _ = write_parquet(folder, seed=seed)
    table = pq.read_table(train)
    firsts = [int(info["problem_id"].partition("+")[0]) for info in table["extra_info"].to_pylist()]
    pq.write_table(table.append_column("remainder", pa.array([first % 4 for first in firsts])), train)
    return train
