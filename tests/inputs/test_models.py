"""Faults of model folders: what is not there is called that, and a copy that broke off is found by its own index."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inputs.files import write_model

from opd.inputs.models import model_problems


def faults(path) -> list:
    return list(model_problems([("teacher.path", str(path))]))


def only(path):
    [problem] = faults(path)
    assert problem.path == "teacher.path"
    assert problem.fix
    return problem


@pytest.mark.parametrize(
    ("path", "rule", "fix"),
    [
        ("./Qwen3-8b", "there is no such folder; a Hugging Face id is NAME or OWNER/NAME", "a folder that is there"),
        ("https://huggingface.co/Qwen/Qwen3-1.7B", "no model is read from https://", "write OWNER/NAME"),
        ("oss://bucket/model", "no model is read from oss://", "into such a store"),
        ("file:///models/student", "no model is read from file://", "the folder's path"),
        ("toy://pupil", "no bundled model", "toy://student or toy://teacher"),
    ],
)
def test_a_path_that_no_model_is_read_from_is_refused_with_the_forms_of_one(path, rule, fix):
    found = only(path)
    assert rule in found.rule
    assert fix in found.fix


def test_a_folder_without_tokenizer_or_weights_is_refused_for_both(tmp_path):
    folder = Path(write_model(tmp_path / "m"))
    for file in folder.glob("*model*"):
        file.unlink()
    (folder / "tokenizer.json").unlink()
    assert [problem.rule.partition(" (")[0] for problem in faults(folder)] == [
        "it has no tokenizer",
        "it has no weights",
    ]


def test_a_gguf_file_or_folder_is_refused_with_the_command_that_converts_one(tmp_path):
    file = tmp_path / "m.gguf"
    file.touch()
    for path in (tmp_path, file):
        assert "GGUF" in only(path).rule
        assert "python -m opd.data.fetch_smollm2" in only(path).fix


def test_a_weight_file_that_was_not_copied_is_named_by_the_index(tmp_path):
    folder = Path(write_model(tmp_path / "m"))
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "1 of the 2 weight files" in only(folder).rule
    assert "model-00002-of-00002.safetensors" in only(folder).rule


@pytest.mark.parametrize("num_bytes", [0, 6, 30, -1])
def test_a_weight_file_that_broke_off_is_found_by_its_own_header(tmp_path, num_bytes):
    file = Path(write_model(tmp_path / "m")) / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    assert "model-00001-of-00002.safetensors" in only(file.parent).rule
