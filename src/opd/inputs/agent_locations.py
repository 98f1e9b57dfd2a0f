"""`agent://...` paths of an experiment: the evidence's tiny models, tasks and tool database, wherever the run happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from opd.config.run_config import KEY, RunConfig
from opd.envs.travel.toy import PREFIX, STUDENT, TEACHER, model_folder

_REWARD_DATABASE = "reward.custom_reward_function.reward_kwargs.database_dir"
_PATHS = ("actor_rollout_ref.model.path", _REWARD_DATABASE)
_LISTS = ("data.train_files", "data.val_files")


def resolve_agent(config: DictConfig, folder: Path) -> None:
    """Replace every `agent://` path of a composed config in place; tasks and database are written to `folder` first.

    `agent://student` and `agent://teacher` are models, `agent://train` and `agent://heldout` data,
    `agent://database` the tool database. Tasks are drawn from the run's seed: each seed has its own episodes.

    Raises:
        ValueError: an unknown name behind `agent://`.
    """
    ours = RunConfig.of(config)
    seed = ours.spec.seed
    with open_dict(config):
        for key in _LISTS:
            value = OmegaConf.select(config, key)
            paths = list(value) if isinstance(value, ListConfig) else [value]
            OmegaConf.update(config, key, [_resolved(str(path), seed, folder) for path in paths])
        for key in _PATHS:
            value = OmegaConf.select(config, key)
            if value is not None:
                OmegaConf.update(config, key, _resolved(str(value), seed, folder))
    teachers = {key: _resolved(path, seed, folder) for key, path in ours.teacher_paths.items()}
    database = ours.database_dir and _resolved(ours.database_dir, seed, folder)
    config[KEY] = ours.with_facts(teacher_paths=teachers, database_dir=database).text()


def _resolved(path: str, seed: int, folder: Path) -> str:
    if not path.startswith(PREFIX):
        return path
    from opd.envs.travel.toy.task import make_world, write_tasks

    database = folder / "database"
    places: dict[str, Callable[[], Path]] = {
        "student": lambda: model_folder(STUDENT),
        "teacher": lambda: model_folder(TEACHER),
        "database": lambda: make_world(database),
        "train": lambda: write_tasks(folder, make_world(database), seed=seed)[0],
        "heldout": lambda: write_tasks(folder, make_world(database), seed=seed)[1],
    }
    name = path.removeprefix(PREFIX)
    if name not in places:
        raise ValueError(f"{path}: unknown; known names are {', '.join(PREFIX + name for name in places)}")
    return str(places[name]())
