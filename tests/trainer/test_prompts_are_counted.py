"""The prompt data set: unique row numbers over all files, and no prompt dropped or cut without a count."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

from opd.data.toy import STUDENT_DIR
from opd.experiment import SpecError, parse_tree
from opd.experiment.run_config import RunConfig, RunFacts
from opd.job import Data
from opd.trainer.dataset import PromptDataset

_LONG, _SHORT = "12+34+" * 5, "12+34="


def _file(path, questions):
    rows = [
        {
            "data_source": "toy_add",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": "046"},
            "extra_info": {"index": 7},
        }
        for question in questions
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def _dataset(files, *, filters: bool = True) -> PromptDataset:
    config = OmegaConf.create(
        {"max_prompt_length": 16, "filter_overlong_prompts": filters, "return_raw_chat": True, "prompt_key": "prompt"}
    )
    return PromptDataset(files, AutoTokenizer.from_pretrained(STUDENT_DIR), config)


def test_overlong_prompts_are_dropped_and_counted(tmp_path):
    dataset = _dataset([_file(tmp_path / "a.parquet", [_SHORT, _LONG, _SHORT, _LONG, _LONG])])
    assert len(dataset) == 2
    assert dataset.num_overlong_dropped == 3


def test_an_overlong_prompt_that_may_not_be_dropped_is_an_error_not_a_cut(tmp_path):
    with pytest.raises(ValueError, match=r"1 of 2 prompts .* longer than data\.max_prompt_length=16"):
        _dataset([_file(tmp_path / "a.parquet", [_SHORT, _LONG])], filters=False)
    with pytest.raises(
        ValueError, match=r"no prompt of .*a\.parquet fits data\.max_prompt_length=16 tokens; the shortest has 38"
    ):
        _dataset([_file(tmp_path / "a.parquet", [_LONG + "1", _LONG])])


def test_rows_of_several_files_have_numbers_of_their_own(tmp_path):
    # The files' own `extra_info.index` repeats: seeds made of it would give two prompts the same samples.
    files = [_file(tmp_path / f"{name}.parquet", [_SHORT, _SHORT]) for name in "ab"]
    dataset = _dataset(files)
    assert [dataset[i]["index"] for i in range(4)] == [0, 1, 2, 3]


def test_files_whose_columns_differ_in_type_are_read_together_and_their_problems_named(tmp_path):
    """Ours, one with DAPO's texts as indices and numbers as ground truths, and JSON lines with the columns a run needs."""
    prompt = [{"content": _SHORT, "role": "user"}]
    dapo = {"data_source": "aime", "prompt": prompt, "reward_model": {"ground_truth": 46, "style": "rule"},
            "extra_info": {"index": "9a9b6eb4-a1cb", "raw_problem": _SHORT}}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([dapo, dapo]), tmp_path / "dapo.parquet")
    bare = {"data_source": "mine", "prompt": prompt, "reward_model": {"ground_truth": "046"}}
    (tmp_path / "mine.jsonl").write_text(json.dumps(bare) + "\n")
    files = [
        _file(tmp_path / "a.parquet", [_LONG, _SHORT]),
        str(tmp_path / "dapo.parquet"),
        str(tmp_path / "mine.jsonl"),
    ]
    dataset = _dataset(files)
    assert [row["reward_model"]["ground_truth"] for row in dataset] == ["046", "46", "46", "046"]
    problems = dataset.name_problems()
    assert [tuple(problems[place]) for place in dataset.places] == [
        ("toy_add", 1),
        ("aime", 0),
        ("aime", 0),  # the same prompt again
        ("mine", 0),
    ]
    assert [problems[place].data_source for place in dataset.dropped_places] == ["toy_add"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_choice_of_rows_is_verls_own(tmp_path, monkeypatch, shuffle):
    # verl's filter is the one of `datasets`, which leaves a copy in the place of os.environ: of that, libraries such as rich see no change.
    monkeypatch.setattr(os, "environ", os.environ)
    path = _file(tmp_path / "a.parquet", [f"{number}+34=" for number in range(10, 40)])
    config = OmegaConf.create({"max_prompt_length": 16, "prompt_key": "prompt", "shuffle": shuffle, "seed": 5})
    tokenizer = AutoTokenizer.from_pretrained(STUDENT_DIR)
    ours, verls = (cls([path], tokenizer, config, max_samples=7) for cls in (PromptDataset, RLHFDataset))
    assert [row["prompt"] for row in ours] == [row["prompt"] for row in verls]
    assert len(ours) == 7


def _data(dataset: PromptDataset, batch_size: int, **trainer: int | None) -> Data:
    tree = {"kind": "grpo", "model": {"path": "m"}, "data": {"split": {"part": 1}}}
    made = object.__new__(Data)
    made.ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="out/r"))
    made.train, made._rows = dataset, None
    made.config = OmegaConf.create({
        "data": {"train_batch_size": batch_size, "dataloader_num_workers": 0, "shuffle": False},
        "actor_rollout_ref": {"actor": {"optim": {}}}, "trainer": {"total_training_steps": None, "total_epochs": 3} | trainer,
    })  # fmt: skip
    return made


def test_fewer_prompts_than_a_batch_after_the_overlong_ones_are_dropped_are_a_fault_of_the_spec(tmp_path):
    # Without this check a run would divide by the steps of an epoch, 0.
    dataset = _dataset([_file(tmp_path / "a.parquet", [_SHORT, _LONG, _SHORT, _LONG, _LONG])])
    _data(dataset, 2).begin()
    with pytest.raises(
        SpecError,
        match=r"2 are left of the training data: 3 are longer than data\.max_prompt_length=16 tokens, only part 1 of 2",
    ):
        _data(dataset, 3).begin()


@pytest.mark.parametrize(("total_steps", "expected"), [(None, 6), (40, 40)])
def test_schedules_of_the_optimizers_end_with_the_last_step_which_epochs_say_where_no_number_does(
    tmp_path, total_steps, expected
):
    dataset = _dataset([_file(tmp_path / "a.parquet", [_SHORT] * 5)])
    data = _data(dataset, 2, total_training_steps=total_steps)
    data.begin()
    assert (data.total_steps, data.steps_per_epoch) == (expected, 2)
    assert data.config.actor_rollout_ref.actor.optim.total_training_steps == expected
    drawn = [[row["uid"] for row in data.next_prompts(step)] for step in (1, 2, 3)]
    assert drawn == [["1/0", "1/1"], ["2/0", "2/1"], ["3/0", "3/1"]], "the data begin anew after two steps"
    assert [data.epoch(step) for step in (1, 2, 3)] == [0, 0, 1]


@pytest.mark.parametrize("kept", [1, 2, 3, 4], ids=lambda step: f"saved after step {step}")
def test_a_resumed_run_draws_the_rows_that_the_uninterrupted_run_draws_next(tmp_path, kept):
    # Steps 2 and 4 end an epoch: the resumed loader has no rows left and starts the next epoch.
    dataset = _dataset([_file(tmp_path / "a.parquet", [f"{_SHORT} {number}" for number in range(4)])])
    whole, resumed = _data(dataset, 2), _data(dataset, 2)
    for data in (whole, resumed):
        data.config.data.update({"shuffle": True, "seed": 1})
        data.begin()
    for step in range(1, kept + 1):
        whole.next_prompts(step)
    resumed.loader.load_state_dict(whole.loader.state_dict())
    for step in range(kept + 1, kept + 5):
        assert resumed.next_prompts(step) == whole.next_prompts(step)
