"""Model folders and hub repositories, judged by what transformers will load of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.inputs.files import write_model

from opd.inputs.models import model_problems, name_faults, needed_files


def faults(path, **options) -> list:
    return list(model_problems([("teacher.path", str(path))], **options))


def only(path):
    [problem] = faults(path)
    assert problem.path == "teacher.path"
    assert problem.fix
    return problem


@pytest.mark.parametrize(
    ("path", "rule", "fix"),
    [
        ("./Qwen3-8b", "there is no such folder; a Hugging Face id is NAME or OWNER/NAME", "a folder that is there"),
        ("https://huggingface.co/Qwen/Qwen3-1.7B", "no model is read from https://", "OWNER/NAME of the hub"),
        ("oss://bucket/model", "no model is read from oss://", "the URL of a copy in a store (s3://"),
        ("file:///models/student", "no model is read from file://", "the folder's path"),
        ("toy://pupil", "no bundled model", "toy://student or toy://teacher"),
        ("m/llama-saef", "there is no such folder; the folder m has llama-safe, a", "--local-dir FOLDER"),
        ("m/llama-safe/x", "there is no such folder; a Hugging Face id is", "a folder that is there"),
        ("n/llama-safe", "HF_HUB_OFFLINE is set, and the cache empty does not have this model", "unset HF_HUB_OFFLINE"),
    ],
)
def test_a_path_that_no_model_is_read_from_is_refused_with_the_forms_of_one(tmp_path, monkeypatch, path, rule, fix):
    for name in ("a", "llama-safe"):
        (tmp_path / "m" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert faults("n/llama-safe") == [], "the hub is asked later"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "empty")
    found = only(path)
    assert rule in found.rule
    assert fix in found.fix


INDEX, CUT = "model.safetensors.index.json", b'{"cut": '
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
ALONE = {INDEX: None, SECOND: None}


@pytest.mark.parametrize(
    ("changed", "said", "fix"),
    [
        ({INDEX: None}, [f"shards without the index that names them (*.index.json): {FIRST}"], "download"),
        (ALONE, ["shards without the index that names them"], "download"),
        ({SECOND: None}, [f"1 of the 2 weight files of its {INDEX} are not there: {SECOND}"], "download"),
        (ALONE | {FIRST: "consolidated.safetensors"},
         ["consolidated weights only (Mistral's or Llama's own layout): consolidated.safetensors"], "Hugging Face's layout"),
        (ALONE | {FIRST: "adapter_model.safetensors"}, ["adapters only: adapter_model.safetensors"], "merge_and_unload"),
        (ALONE | {FIRST: "model.Q4_1.gguf"}, ["GGUF only: model.Q4_1.gguf"], "fetch_smollm2"),
        ({"generation_config.json": CUT}, ["its generation_config.json cannot be read: Expecting value"], "download"),
        ({"tokenizer.json": CUT}, ["its tokenizer.json cannot be read: Expecting value"], "download"),
        (ALONE | {FIRST: None, "tokenizer.json": None},
         ["it has no tokenizer", "it has no weights that transformers loads"], "download"),
    ],
)  # fmt: skip
def test_a_folder_that_transformers_cannot_load_is_refused_by_what_it_holds(tmp_path, changed, said, fix):
    folder = Path(write_model(tmp_path / "m"))
    for name, new in changed.items():
        if isinstance(new, bytes):
            (folder / name).write_bytes(new)
        else:
            (folder / name).rename(folder / new if new else tmp_path / name)
    for problem, part in zip(faults(folder), said, strict=True):
        assert part in problem.rule
        assert fix in problem.fix


SIZES = {
    "model_type": "qwen3", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "tie_word_embeddings": True,
}  # fmt: skip


def write_sized(folder: Path, sizes: dict, **config) -> Path:
    """A folder whose one weight file has the tensors of these sizes, and a config of others."""
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps(SIZES | config))
    shapes = {"model.embed_tokens.weight": [sizes["vocab_size"], sizes["hidden_size"]]}
    for layer in range(sizes["num_hidden_layers"]):
        of_layer = f"model.layers.{layer}."
        shapes[f"{of_layer}self_attn.q_proj.weight"] = [sizes["num_attention_heads"] * 2, sizes["hidden_size"]]
        shapes[f"{of_layer}self_attn.k_proj.weight"] = [sizes["num_key_value_heads"] * 2, sizes["hidden_size"]]
        shapes[f"{of_layer}mlp.gate_proj.weight"] = [sizes["intermediate_size"], sizes["hidden_size"]]
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        ({"hidden_size": 6}, {}, "model.embed_tokens.weight has the shape [8, 6], config.json says [8, 4] (7 tensors differ)"),
        ({"intermediate_size": 5}, {}, "model.layers.0.mlp.gate_proj.weight has the shape [5, 4], config.json says [6, 4]"),
        ({"num_attention_heads": 4}, {}, "model.layers.0.self_attn.q_proj.weight has the shape [8, 4], config.json says [4, 4]"),
        ({"num_hidden_layers": 1}, {}, "model.layers.1.self_attn.q_proj.weight is missing, config.json says [4, 4]"),
        ({}, {"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ],
)  # fmt: skip
def test_weights_of_another_size_than_the_config_says_are_refused_by_tensor(tmp_path, change, config, said):
    assert said in only(write_sized(tmp_path, SIZES | change, **config)).rule
    assert faults(write_sized(tmp_path, SIZES)) == []
    quantized = write_sized(tmp_path, SIZES | change, quantization_config={"quant_method": "fp8"})
    assert faults(quantized, may_be_quantized=True) == [], "its weights have shapes of their own"


def test_a_gguf_file_or_folder_is_refused_with_the_command_that_converts_one(tmp_path):
    file = tmp_path / "m.gguf"
    file.touch()
    for path in (tmp_path, file):
        assert "GGUF" in only(path).rule
        assert "python -m opd.data.fetch_smollm2" in only(path).fix


def test_an_adapter_folder_is_told_what_it_is(tmp_path):
    folder = Path(write_model(tmp_path / "m"))
    (folder / "adapter_config.json").write_text("{}")
    assert "loads that adapter's base model" in only(folder).rule
    (folder / "config.json").unlink()
    assert "it holds adapters (adapter_config.json)" in only(folder).rule
    assert "merge_and_unload" in only(folder).fix


@pytest.mark.parametrize("method", ["fp8", "mxfp4", "bitsandbytes", "awq", "gptq", "compressed-tensors"])
@pytest.mark.parametrize("section", [None, "text_config"])
def test_quantized_weights_are_refused_but_for_vllm_alone(tmp_path, method, section):
    folder = Path(write_model(tmp_path / "m"))
    config = {"quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps({section: config} if section else config))
    assert f"its weights are quantized ({method})" in only(folder).rule
    assert "dequantized" in only(folder).fix
    assert faults(folder, may_be_quantized=True) == []


def test_a_model_without_a_head_that_writes_is_refused(tmp_path):
    folder = Path(write_model(tmp_path / "m"))
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForSequenceClassification"]}))
    assert "a Qwen3ForSequenceClassification, which has no head" in only(folder).rule


@pytest.mark.parametrize("num_bytes", [0, 6, 30, -1])
def test_a_weight_file_that_broke_off_is_found_by_its_own_header(tmp_path, num_bytes):
    file = Path(write_model(tmp_path / "m")) / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    assert "model-00001-of-00002.safetensors" in only(file.parent).rule


SMALL = ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"]


@pytest.mark.parametrize(
    ("copies", "needed"),
    [
        (["model.safetensors", "pytorch_model.bin", "original/consolidated.00.pth"], ["model.safetensors"]),
        (["model-00001-of-00001.safetensors", "model.safetensors.index.json", "metal/model.bin", "original/model.safetensors"],
         ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]),
        (["consolidated.safetensors", "model.safetensors", "model.gguf", "onnx/model.onnx"], ["model.safetensors"]),
        (["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "tf_model.h5", "training_args.bin"],
         ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"]),
    ],
)  # fmt: skip
def test_of_a_repository_only_the_files_that_are_needed_are_fetched(copies, needed):
    assert list(name_faults([*SMALL, *copies])) == []
    assert needed_files([*SMALL, *copies]) == sorted([*SMALL, *needed])
