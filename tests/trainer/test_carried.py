"""Rows of a run with rollout.schedule carry: the data that it takes, and the file with which it continues."""

import errno
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from tests.minimal import MINIMAL
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR
from opd.errors import CheckpointError
from opd.experiment import OpdSpec, SpecError, parse_tree
from opd.rollout.carry import CHECKPOINT_FILE, Growth
from opd.trainer.carried import CarriedRows
from opd.trainer.dataset import PromptDataset


class _Manager:
    """In the place of the rollout: a row ends with its first token; notes the columns that it is given."""

    def __init__(self) -> None:
        self.columns: set[str] = set()

    def advance(self, slots, num_tokens):
        self.columns.update(name for slot in slots for prompt, _ in slot for name in prompt)
        return [[Growth(tokens=[5], version=0, is_complete=True, prompt_ids=[3]) for _ in slot] for slot in slots]


def _dataset(folder, **columns: str) -> PromptDataset:
    row = {
        "data_source": "maths",
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"ground_truth": "2"},
    }
    pq.write_table(pa.Table.from_pylist([row | columns for _ in range(8)]), folder / "train.parquet")
    data = OmegaConf.create({"max_prompt_length": 16, "prompt_key": "prompt", "filter_overlong_prompts": True})
    return PromptDataset([str(folder / "train.parquet")], AutoTokenizer.from_pretrained(STUDENT_DIR), data)


@pytest.fixture
def spec() -> OpdSpec:
    tree = MINIMAL["opd"] | {"rollout": {"schedule": "carry"}}
    tree |= {
        "trainer": tree.get("trainer", {}) | {"gpus_per_node": 1, "nnodes": 1},
        "actor": {"ppo_mini_batch_size": 4},
    }
    tree |= {"data": tree.get("data", {}) | {"train_batch_size": 4}}
    made = parse_tree(tree).spec
    assert isinstance(made, OpdSpec)
    return made


def test_data_that_ask_for_another_agent_loop_are_refused(tmp_path, spec):
    with pytest.raises(SpecError) as caught:
        CarriedRows(spec, _dataset(tmp_path, agent_name="tool_agent"))
    (problem,) = caught.value.problems
    assert problem.path == "data.train"
    assert "column agent_name of the data asks for ['tool_agent']" in problem.rule


def test_the_column_of_the_one_agent_loop_is_not_handed_on(tmp_path, spec):
    dataset, manager = _dataset(tmp_path, agent_name="single_turn_agent"), _Manager()
    batch = CarriedRows(spec, dataset).batch(1, lambda: [{"index": index} for index in range(8)], manager)
    columns = {name for prompt in batch.prompts for name in prompt}
    assert "raw_prompt" in manager.columns & columns
    assert "agent_name" not in manager.columns | columns


@pytest.mark.parametrize("key", ["running", "clock", "is_cold"])
def test_a_file_without_a_key_is_refused_with_what_to_do(tmp_path, spec, key):
    rows = CarriedRows(spec, _dataset(tmp_path))
    rows.save(tmp_path)
    rows.load(tmp_path)
    state = json.loads((tmp_path / CHECKPOINT_FILE).read_text())
    del state[key]
    (tmp_path / CHECKPOINT_FILE).write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=f"no file of rollout.schedule carry .*{key}.* resume from an earlier"):
        rows.load(tmp_path)


def test_a_disk_that_fails_now_is_no_verdict_on_the_checkpoint(tmp_path, spec, monkeypatch):
    rows = CarriedRows(spec, _dataset(tmp_path))
    rows.save(tmp_path)

    def fails(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "read_text", fails)
    with pytest.raises(OSError, match="Input/output error"):
        rows.load(tmp_path)
