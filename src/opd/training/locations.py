"""`toy://...` paths of an experiment: the bundled task and models, wherever the run happens (laptop, pod)."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, ListConfig, open_dict

from opd.data.toy import model_folder
from opd.data.toy.task import write_parquet

_DATA = {"toy://train": 0, "toy://heldout": 1}  # which of the files that `write_parquet` returns


def resolve_toy(config: DictConfig, folder: Path) -> None:
    """Replace every `toy://` path of a composed config in place; data sets are written to `folder` first.

    `toy://train` and `toy://heldout` are data, `toy://student` and `toy://teacher` models.

    Raises:
        ValueError: an unknown name behind `toy://`.
    """
    role = config.actor_rollout_ref
    written: list[Path] = []

    def file_of(path: str) -> str:
        if path.startswith("toy://") and path not in _DATA:
            raise ValueError(f"{path}: unknown; known data sets are {', '.join(_DATA)}")
        if path not in _DATA:
            return path
        if not written:
            written.extend(write_parquet(folder, seed=int(config.run.seed)))
        return str(written[_DATA[path]])

    with open_dict(config):
        for key in ("train_files", "val_files"):
            value = config.data[key]
            paths = value if isinstance(value, ListConfig) else [value]
            config.data[key] = [file_of(str(path)) for path in paths]
        role.model.path = model_folder(str(role.model.path))
        if config.opd.teacher.path is not None:
            config.opd.teacher.path = model_folder(str(config.opd.teacher.path))
