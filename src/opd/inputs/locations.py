"""Paths of an experiment that are not plain files: bundled tasks and models, data sets of the hub and store URLs, made local first."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from opd.agent.environments import toy_place
from opd.data.toy import TOY, model_folder
from opd.data.toy.task import write_parquet
from opd.experiment.algorithm import MESSAGES
from opd.experiment.run_config import KEY, RunConfig
from opd.experiment.types import HUB
from opd.inputs.fetch import hub_copy, local_file
from opd.store.access import is_store_url

_REWARD_DATABASE = "reward.custom_reward_function.reward_kwargs.database_dir"
_TOY_DATA = {"toy://train": 0, "toy://heldout": 1}  # which of the files that `write_parquet` returns


def resolve(config: DictConfig, folder: Path) -> dict[str, str]:
    """Replace every path of a composed config in place by a local one, fetched and verified, or written to `folder` first.

    `toy://` and `agent://` name bundled models, data and databases; each seed has its own episodes.

    Returns:
        The models' URLs and local folders: ranks on other nodes need them too. Data sets are read by the trainer alone.

    Raises:
        SpecError: there is nothing at a URL. ValueError: an unknown bundled name.
        FetchError, StoreError: see `opd.inputs.fetch.local_copy`.
        NoEnvironment: the default environment is not installed.
    """
    ours, models, files = RunConfig.of(config), dict[str, str](), dict[str, str]()
    seed = ours.spec.seed
    is_sft = config.data.get("prompt_key") == MESSAGES
    toy_data = cache(lambda: write_parquet(folder, seed=seed, as_conversations=is_sft))

    def model(key: str, path: str) -> str:
        if is_store_url(path) and path not in models:
            models[path] = str(local_file(f"{key}.path", path))
        return models.get(path) or toy_place(model_folder(path), folder, seed=seed)

    def data(key: str, path: str) -> str:
        if path in _TOY_DATA:
            return str(toy_data()[_TOY_DATA[path]])
        if path.startswith(TOY):
            raise ValueError(f"{path}: unknown; known data sets are {', '.join(_TOY_DATA)}")
        if path.startswith(HUB):
            files[copy := hub_copy(key, path)] = path
            return copy
        if is_store_url(path):
            files[copy := str(local_file(key, path))] = path
            return copy
        return toy_place(path, folder, seed=seed)

    with open_dict(config):
        for part in ("train", "val"):
            given = config.data[f"{part}_files"]
            paths = given if isinstance(given, ListConfig) else [given]
            config.data[f"{part}_files"] = [data(f"data.{part}", str(path)) for path in paths]
        config.data.fetched_from = files  # local path: URL; an evaluation names its data sets by what people wrote
        role = config.actor_rollout_ref
        role.model.path = model("model", str(role.model.path))
        if database := OmegaConf.select(config, _REWARD_DATABASE):
            OmegaConf.update(config, _REWARD_DATABASE, toy_place(str(database), folder, seed=seed))
    teachers = {key: model(key, path) for key, path in ours.teacher_paths.items()}
    database = ours.database_dir and toy_place(ours.database_dir, folder, seed=seed)
    config[KEY] = ours.with_facts(teacher_paths=teachers, database_dir=database).text()
    return models
