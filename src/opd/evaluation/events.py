"""A served teacher's answers with its likeliest tokens at each place: a part of each batch, at the end one file."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from opd.data.rows import write_files
from opd.evaluation.samples import SCHEMA, Sample, as_row, read_generations
from opd.rollout.rows import IDS, LOG_PROBS

PARTS_PREFIX = "eval/events"
"""Folder of the parts in the run directory, until the evaluation has ended."""
_SCHEMA = SCHEMA.append(pa.field(IDS, pa.list_(pa.int32()))).append(pa.field(LOG_PROBS, pa.list_(pa.float32())))
"""The events are tokens * (1 + k) values: of each token first its own, then those of the k likeliest ones."""


def name_of(sample: Sample) -> tuple[str, int, int]:
    """Return what no other answer of an evaluation has."""
    return sample.data_source, sample.problem_index, sample.sample_index


def write_part(path: Path, answers: Iterable[tuple[Sample, dict[str, Tensor]]]) -> None:
    """Write answers with their columns `IDS` and `LOG_PROBS`."""
    rows = [as_row(one) | {name: values.flatten().numpy() for name, values in of.items()} for one, of in answers]
    write_files({path: rows}, {}, schema=_SCHEMA)


def read_parts(parts: Sequence[Path]) -> list[Sample]:
    """Return the samples of parts; of an answer in several parts the last counts."""
    return list({name_of(one): one for part in parts for one in read_generations(part.read_bytes())}.values())


def join(path: Path, samples: Iterable[Sample], parts: Sequence[Path]) -> None:
    """Write the samples as the parts have them, part by part."""
    left, unfinished = set(map(name_of, samples)), path.with_name(f".{path.name}.tmp")
    with unfinished.open("wb") as file:
        with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
            for part in reversed(parts):
                names = list(map(name_of, read_generations(part.read_bytes())))
                writer.write_table(pq.read_table(part).filter(pa.array([name in left for name in names])))
                left -= set(names)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
