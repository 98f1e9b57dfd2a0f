"""Data sets of the hub in an experiment file: one text in the spec, read by the `datasets` library into the cache."""

import json

import pyarrow.parquet as pq
import pytest

from opd.experiment import SpecError, parse_tree
from opd.inputs.fetch import hub_copy

TREE = {"kind": "opd", "model": "m", "teacher": "t"}


def files(train) -> tuple:
    return parse_tree(TREE | {"data": {"train": train, "val": "v.parquet"}}).spec.data.train


@pytest.mark.parametrize(
    ("train", "read"),
    [
        ("a.parquet", ("a.parquet",)),
        ({"path": "openai/gsm8k", "split": "train", "name": "main"}, ("hub://openai/gsm8k?split=train&name=main",)),
        (["a.jsonl", {"path": "me/x"}], ("a.jsonl", "hub://me/x")),
    ],
)
def test_files_and_sets_of_the_hub_are_texts(train, read):
    assert files(train) == read


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"split": "train"}, "path"),
        ({"path": "a/b", "config": "c"}, "config"),
        ({"path": "a.jsonl", "split": "train"}, "write the file a.jsonl alone"),
    ],
)
def test_a_set_of_the_hub_has_known_keys(train, said):
    with pytest.raises(SpecError, match=said):
        files(train)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": split}) + "\n")
    return tmp_path


def test_a_split_is_copied_into_the_cache_under_the_name_of_the_set(folder):
    copy = hub_copy("data.train", f"hub://{folder}?split=test")
    assert copy.endswith(f"/{folder.name}.parquet")
    assert pq.read_table(copy).to_pylist() == [{"question": "1 + 1?", "answer": "test"}]


@pytest.mark.parametrize(("query", "said"), [("", "it has the splits train, test"), ("?split=dev", "cannot be read")])
def test_a_missing_or_unknown_split_is_named(folder, query, said):
    with pytest.raises(SpecError, match=said) as caught:
        hub_copy("data.val", f"hub://{folder}{query}")
    assert caught.value.problems[0].path == "data.val"
