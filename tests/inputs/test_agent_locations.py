"""`agent://` paths become files of the run, the same for the same seed."""

import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from opd.experiment import parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts
from opd.inputs.locations import resolve
from opd_envs.database_folder import read_manifest
from opd_envs.travel.database import Manifest
from opd_envs.travel.toy import MODELS, STUDENT

SPEC = {"kind": "grpo", "model": {"path": "agent://student"}, "agent": {"database_dir": "agent://database"}}


def config(seed: int = 1, **paths):
    tree = {
        "data": {"train_files": ["agent://train"], "val_files": ["agent://heldout", "else.parquet"]},
        "actor_rollout_ref": {"model": {"path": "agent://student"}},
        KEY: RunConfig(spec=parse_tree(SPEC | {"seed": seed}).spec, run=RunFacts(run_id="r", run_dir="out/r")).text(),
        "reward": {"custom_reward_function": {"reward_kwargs": {"database_dir": "agent://database"}}},
    }
    return OmegaConf.merge(OmegaConf.create(tree), OmegaConf.from_dotlist([f"{k}={v}" for k, v in paths.items()]))


def test_every_agent_path_is_replaced_and_others_stay(tmp_path):
    found = config()
    resolve(found, tmp_path)
    assert found.actor_rollout_ref.model.path == str(MODELS[STUDENT])
    assert RunConfig.of(found).database_dir == found.reward.custom_reward_function.reward_kwargs.database_dir
    read_manifest(tmp_path / "database", Manifest, compare_hashes=True)
    assert found.data.val_files == [str(tmp_path / "heldout.parquet"), "else.parquet"]
    assert RunConfig.of(found).teacher_paths == {}


@pytest.mark.slow
def test_episodes_differ_between_seeds_and_between_training_and_held_out(tmp_path):
    def episodes(seed: int) -> tuple[set[int], set[int]]:
        folder = tmp_path / str(seed)
        resolve(config(seed), folder)
        return tuple(
            {info["episode_seed"] for info in pq.read_table(folder / name).column("extra_info").to_pylist()}
            for name in ("train.parquet", "heldout.parquet")
        )

    first, second = episodes(1), episodes(2)
    assert not first[0] & first[1]
    assert not first[0] & second[0]
    assert not first[1] & second[1]


@pytest.mark.slow
def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"agent://pupil: unknown; known names are agent://student"):
        resolve(config(**{"actor_rollout_ref.model.path": "agent://pupil"}), tmp_path)
