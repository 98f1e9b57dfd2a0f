"""Paths of an experiment that are not plain files: `toy://` and `agent://` (bundled tasks and models) and store URLs, made local first."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from opd.agent.environments import toy_place
from opd.data.toy import model_folder
from opd.data.toy.task import write_conversations, write_parquet
from opd.experiment.algorithm import MESSAGES
from opd.experiment.run_config import KEY, RunConfig
from opd.inputs.fetch import local_copy, naming
from opd.store.access import is_store_url

_REWARD_DATABASE = "reward.custom_reward_function.reward_kwargs.database_dir"
_PATHS = ("actor_rollout_ref.model.path", _REWARD_DATABASE)
_LISTS = ("data.train_files", "data.val_files")


def resolve_agent(config: DictConfig, folder: Path) -> None:
    """Replace every `agent://` path of a composed config in place; tasks and database are written to `folder` first.

    `agent://student` and `agent://teacher` are models, `agent://train` and `agent://heldout` data,
    `agent://database` the tool database. Tasks are drawn from the run's seed: each seed has its own episodes.

    Raises:
        ValueError: an unknown name behind `agent://`.
        NoEnvironment: the default environment is not installed.
    """
    ours = RunConfig.of(config)
    seed = ours.spec.seed
    with open_dict(config):
        for key in _LISTS:
            value = OmegaConf.select(config, key)
            paths = list(value) if isinstance(value, ListConfig) else [value]
            OmegaConf.update(config, key, [toy_place(str(path), folder, seed=seed) for path in paths])
        for key in _PATHS:
            value = OmegaConf.select(config, key)
            if value is not None:
                OmegaConf.update(config, key, toy_place(str(value), folder, seed=seed))
    teachers = {key: toy_place(path, folder, seed=seed) for key, path in ours.teacher_paths.items()}
    database = ours.database_dir and toy_place(ours.database_dir, folder, seed=seed)
    config[KEY] = ours.with_facts(teacher_paths=teachers, database_dir=database).text()


_DATA = {"toy://train": 0, "toy://heldout": 1}  # which of the files that `write_parquet` returns


_DATA_KEYS = ("train_files", "val_files")


def resolve_store_urls(config: DictConfig) -> dict[str, str]:
    """Fetch and verify what a composed config names by a store URL, and put the local paths in their place.

    Returns:
        The models' URLs and local folders: ranks on other nodes need them too. Data sets are read by the trainer alone.

    Raises:
        SpecError: there is nothing behind a URL.
        FetchError, StoreError: see `opd.inputs.fetch.local_copy`.
    """
    models: dict[str, str] = {}
    files: dict[str, str] = {}

    def local(key: str, path: str) -> str:
        if not is_store_url(path):
            return path
        with naming(key, path):
            files[copy := local_copy(path)] = path
        return copy

    with open_dict(config):
        for key in _DATA_KEYS:
            config.data[key] = [local(f"data.{key.removesuffix('_files')}", path) for path in _paths(config.data[key])]
        config.data.fetched_from = files  # local path: URL; an evaluation names its data sets by what people wrote
    ours = RunConfig.of(config)
    role, teachers = config.actor_rollout_ref, ours.teacher_paths
    for key, path in {"model": str(role.model.path), **teachers}.items():
        if is_store_url(path) and path not in models:
            with naming(f"{key}.path", path):
                models[path] = local_copy(path)
    role.model.path = models.get(str(role.model.path), role.model.path)
    if models.keys() & set(teachers.values()):
        fetched = {key: models.get(path, path) for key, path in teachers.items()}
        config[KEY] = ours.with_facts(teacher_paths=fetched).text()
    return models


def _paths(value: str | ListConfig) -> list[str]:
    return [str(path) for path in value] if isinstance(value, ListConfig) else [str(value)]


def resolve_toy(config: DictConfig, folder: Path) -> None:
    """Replace every `toy://` path of a composed config in place; data sets are written to `folder` first.

    `toy://train` and `toy://heldout` are data (conversations where the run learns from these), `toy://student` and `toy://teacher` models.

    Raises:
        ValueError: an unknown name behind `toy://`.
    """
    role, ours = config.actor_rollout_ref, RunConfig.of(config)
    written: list[Path] = []
    write = write_conversations if config.data.get("prompt_key") == MESSAGES else write_parquet

    def file_of(path: str) -> str:
        if path.startswith("toy://") and path not in _DATA:
            raise ValueError(f"{path}: unknown; known data sets are {', '.join(_DATA)}")
        if path not in _DATA:
            return path
        if not written:
            written.extend(write(folder, seed=ours.spec.seed))
        return str(written[_DATA[path]])

    with open_dict(config):
        for key in _DATA_KEYS:
            config.data[key] = [file_of(path) for path in _paths(config.data[key])]
        role.model.path = model_folder(str(role.model.path))
    if ours.teacher_paths:
        folders = {key: model_folder(path) for key, path in ours.teacher_paths.items()}
        config[KEY] = ours.with_facts(teacher_paths=folders).text()
