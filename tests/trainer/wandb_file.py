"""Reads the `.wandb` files that W&B writes: records of its own protocol in the log format of LevelDB."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FILE_HEADER = b":W&B"
FILE_HEADER_BYTES = 7
BLOCK_BYTES = 32 * 1024
CHUNK_HEADER_BYTES = 7  # checksum 4, length 2 (little endian), type 1
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbFile(NamedTuple):
    run_id: str
    project: str
    history: list[dict[str, Any]]
    """Rows in the order of the file; `_step` is the step."""


def read_wandb_file(path: Path) -> WandbFile:
    """Return the rows of one attempt, up to the kill."""
    from wandb.proto import wandb_internal_pb2

    run_id = project = ""
    history = []
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run_id, project = record.run.run_id, record.run.project
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            history.append({"_step": record.history.step.num} | row)
    return WandbFile(run_id, project, history)


def _records(data: bytes) -> Iterator[bytes]:
    assert data.startswith(FILE_HEADER)
    position, parts = FILE_HEADER_BYTES, b""
    while position + CHUNK_HEADER_BYTES <= len(data):
        if BLOCK_BYTES - position % BLOCK_BYTES < CHUNK_HEADER_BYTES:  # a header never straddles blocks
            position += BLOCK_BYTES - position % BLOCK_BYTES
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        start = position + CHUNK_HEADER_BYTES
        position = start + length
        if kind not in (FULL, FIRST, MIDDLE, LAST) or position > len(data):
            return  # the end that a kill left
        parts = data[start:position] if kind in (FULL, FIRST) else parts + data[start:position]
        if kind in (FULL, LAST):
            yield parts
