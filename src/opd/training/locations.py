"""`toy://...` paths of an experiment: the bundled task and models, wherever the run happens (laptop, pod)."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, ListConfig, open_dict

from opd.data.toy import STUDENT_DIR, TEACHER_DIR

SCHEME = "toy://"
_MODELS = {"student": STUDENT_DIR, "teacher": TEACHER_DIR}


def resolve_toy(config: DictConfig, folder: Path) -> None:
    """Replace every `toy://` path of a composed config in place; data sets are written to `folder` first.

    `toy://train`, `toy://heldout` (data), `toy://student`, `toy://teacher` (models).

    Raises:
        ValueError: an unknown name behind `toy://`.
    """
    data: dict[str, str] = {}

    def path_of(value: str) -> str:
        if not value.startswith(SCHEME):
            return value
        name = value.removeprefix(SCHEME)
        if name in _MODELS:
            return str(_MODELS[name])
        if not data:
            from opd.data.toy.task import write_parquet

            train, heldout = write_parquet(folder, seed=int(config.run.seed))
            data.update(train=str(train), heldout=str(heldout))
        if name not in data:
            raise ValueError(f"{value}: unknown; known are {', '.join(SCHEME + n for n in (*_MODELS, *data))}")
        return data[name]

    with open_dict(config):
        for section, key in (
            (config.data, "train_files"),
            (config.data, "val_files"),
            (config.actor_rollout_ref.model, "path"),
            (config.opd.teacher, "path"),
        ):
            value = section[key]
            if isinstance(value, ListConfig | list):
                section[key] = [path_of(str(item)) for item in value]
            elif value is not None:
                section[key] = path_of(str(value))
