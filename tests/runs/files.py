"""Where a test's run keeps what, how to read it, and how to damage it."""

from __future__ import annotations

from pathlib import Path

from opd.runs.metrics import read_metrics
from opd.runs.store import Store

MODEL = "actor/model_world_size_1_rank_0.pt"


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def store_folder(tmp_path: Path, step: int) -> Path:
    return tmp_path / f"store/checkpoints/global_step_{step}"


def logged_steps(store: Store) -> list[int]:
    return [row["step"] for row in read_metrics(store).rows]
