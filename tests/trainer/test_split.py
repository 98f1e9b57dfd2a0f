"""`data.split`: every kind's training rows are one seeded part of its data, and validation stays whole."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from opd.data.messages import part_of
from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import write_parquet
from opd.experiment import SpecError
from opd.trainer.dataset import PromptDataset

TOKENIZER = AutoTokenizer.from_pretrained(STUDENT_DIR)


def prompts(files: list[Path], **config) -> PromptDataset:
    least = {"max_prompt_length": 32, "max_response_length": 8, "prompt_key": "prompt", "shuffle": True, "seed": 3}
    max_samples = config.pop("max_samples", -1)
    return PromptDataset(
        [str(path) for path in files], TOKENIZER, OmegaConf.create(least | config), max_samples=max_samples
    )


def asked(dataset: PromptDataset) -> list[str]:
    return [messages[0]["content"] for messages in dataset.dataframe["prompt"]]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    train, _ = write_parquet(tmp_path_factory.mktemp("toy"), seed=3)
    pq.write_table(pq.read_table(train).slice(0, 400), train)
    return train


def half(part: int, seed: int = 1) -> dict:
    return {"split": {"part": part, "of": 2, "seed": seed}}


def test_halves_are_disjoint_and_together_all_rows_in_their_order(file):
    whole = asked(prompts([file]))
    first, second = (asked(prompts([file], **half(part))) for part in (1, 2))
    assert first
    assert second
    assert [q for q in whole if q in set(first)] == first
    assert [q for q in whole if q not in set(first)] == second


def test_a_row_is_in_the_same_half_whatever_files_it_comes_in(file, tmp_path):
    table = pq.read_table(file)
    parts = [table.slice(250), table.slice(0, 250)]
    files = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path, part in zip(files, parts, strict=True):
        pq.write_table(part, path)
    assert set(asked(prompts(files, **half(1)))) == set(asked(prompts([file], **half(1))))
    assert set(asked(prompts(files[:1], **half(1)))) < set(asked(prompts([file], **half(1))))


def test_samples_are_drawn_of_the_half_and_rows_keep_their_places_over_all_files(file):
    drawn = prompts([file], **half(2), max_samples=50)
    assert len(drawn) == 50
    assert set(asked(drawn)) <= set(asked(prompts([file], **half(2))))
    whole = asked(prompts([file]))
    assert [whole[place] for place in drawn.places] == asked(drawn)


def test_a_part_without_a_row_is_an_error(tmp_path):
    messages = [{"role": "user", "content": "1+1="}]
    pq.write_table(pa.Table.from_pylist([{"prompt": messages, "data_source": "x"}]), tmp_path / "a.parquet")
    mine = part_of(messages, of=2, seed=1)
    assert len(prompts([tmp_path / "a.parquet"], **half(mine))) == 1
    with pytest.raises(SpecError, match=r"data\.split(.|\n)*none of 1 rows"):
        prompts([tmp_path / "a.parquet"], **half(3 - mine))
