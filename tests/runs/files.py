"""The files of a test's run: their places, readers and damages."""

import dataclasses
from pathlib import Path
from typing import Any

from opd.runs.manifest import Manifest
from opd.runs.metrics import read_metrics
from opd.store.base import Store

MODEL = "actor/model_world_size_1_rank_0.pt"


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def reseal(folder: Path, *, lost: str = "", **changes: Any) -> None:
    """Seal a step anew with other fields, as if one of its files had never been reported."""
    manifest = Manifest.from_bytes((folder / "manifest.json").read_bytes())
    files = tuple(entry for entry in manifest.files if entry.path != lost)
    manifest = dataclasses.replace(manifest, files=files, **changes)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    (folder / "COMPLETE").write_bytes(manifest.seal())


def store_folder(tmp_path: Path, step: int) -> Path:
    return tmp_path / f"store/checkpoints/global_step_{step}"


def logged_steps(store: Store) -> list[int]:
    return [row["step"] for row in read_metrics([store])]
