"""The converted folder in plain transformers: the same logits as the weights that the trainer's ranks held."""

import json
import shutil
import sys

import pytest
import torch
import yaml
from safetensors import safe_open
from tests.convert.checkpoints import (
    CASES,
    LORA_CASES,
    SPEC_HASH,
    STEP,
    VOCAB_ROWS,
    Case,
    base_model,
    full_weights,
    seal,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM, dynamic_module_utils

from opd.convert.__main__ import main
from opd.convert.pipeline import convert_checkpoint
from opd.convert.source import shard_name
from opd.experiment.algorithm import Convert

pytestmark = pytest.mark.slow  # the first test waits for the saving processes
TWO_RANKS = Case(tied=False, dtype="float32", world_size=2)
IDS = torch.tensor([[5, 60, VOCAB_ROWS - 1, 2, 0, 33, 17]])


def save_alone(state: dict[str, torch.Tensor], actor) -> None:
    """Save weights as a lone rank's."""
    torch.save(state, actor / shard_name(1, 0))
    (actor / "fsdp_config.json").write_text('{"world_size": 1}')


def _expected_logits(saved, case: Case, dtype: torch.dtype) -> torch.Tensor:
    """[1, T, V]: the base model's architecture with the gathered weights in `dtype`."""
    model = AutoModelForCausalLM.from_pretrained(base_model(saved, case.tied), dtype=dtype)
    model.load_state_dict({name: value.to(dtype) for name, value in full_weights(saved, case).items()})
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


@pytest.mark.parametrize("mode", ["checkpoint", "base", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_those_of_the_trained_weights_after_the_cast(saved, sealed, tmp_path, case, mode):
    convert_checkpoint(Convert(checkpoint=str(sealed(case)), target=str(tmp_path / "out"), dtype=mode))
    dtype = getattr(torch, case.dtype) if mode == "checkpoint" else torch.bfloat16  # the base is in bf16
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == dtype
    for name, value in full_weights(saved, case).items():
        assert torch.equal(model.state_dict()[name], value.to(dtype)), name
    expected = _expected_logits(saved, case, dtype)
    with torch.no_grad():
        logits = model.eval()(input_ids=IDS).logits
    # Equal weights: what is left is the order of a kernel's sums, which may follow the alignment of its memory.
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert (logits - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("mode", ["checkpoint", "base"])
@pytest.mark.parametrize("case", LORA_CASES, ids=lambda case: case.name)
def test_a_lora_student_becomes_the_plain_model_that_peft_merges_it_to(saved, sealed, tmp_path, capfd, case, mode):
    _, record = convert_checkpoint(Convert(checkpoint=str(sealed(case)), target=str(tmp_path / "out"), dtype=mode))
    assert "adding the LoRA student's adapters to 14 of them" in capfd.readouterr().err
    assert record["verification"]["num_tensors"] > 0
    base = AutoModelForCausalLM.from_pretrained(base_model(saved, case.tied), dtype=torch.float32).state_dict()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    found = model.state_dict()
    full = full_weights(saved, case)
    assert set(found) == set(full) == set(base)
    moved = {name for name in found if not torch.equal(full[name], base[name])}
    assert moved == {name for name in found if name.endswith("_proj.weight")}, (
        "an adapter on each layer, none on the head"
    )
    assert model.dtype == (torch.float32 if mode == "checkpoint" else torch.bfloat16), "adapters are kept in fp32"
    for name, value in full.items():
        expected = value.to(found[name].dtype)
        if found[name].dtype == torch.float32:
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-7, msg=name)
        else:  # of two sums that differ in fp32's last bit one may round up
            assert (found[name].float() - expected.float()).norm() <= 1e-3 * expected.float().norm(), name


def test_tokenizer_and_generation_config_are_the_checkpoints_and_the_kernel_of_the_trainer_is_not_kept(
    sealed, tmp_path
):
    step_dir = sealed(TWO_RANKS)
    convert_checkpoint(Convert(checkpoint=str(step_dir), target=str(tmp_path / "out")))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (step_dir / "actor" / "huggingface" / name).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("t60")["input_ids"] == [60]
    assert "attn_implementation" in json.loads((step_dir / "actor" / "huggingface" / "config.json").read_text())
    assert "attn_implementation" not in json.loads((tmp_path / "out" / "config.json").read_text())


LICENCES = {
    "---\nlicense: other\nlicense_name: qwen\n---\n": (
        {"license": "other", "license_name": "qwen"},
        "license_name qwen",
    ),
    "A card: without metadata": ({"file": "LICENSE.txt"}, "file LICENSE.txt"),
    "---\n[odd\n---\n": ({"file": "LICENSE.txt"}, "file LICENSE.txt"),
    "": ({}, "not known from the base model"),
}


@pytest.mark.parametrize("own_card", LICENCES)
def test_the_model_card_and_the_record_say_where_the_weights_come_from(saved, tmp_path, own_card):
    base = str(shutil.copytree(base_model(saved, tied=False), tmp_path / "base"))
    if own_card:
        (tmp_path / "base" / "README.md").write_text(own_card)
        (tmp_path / "base" / "LICENSE.txt").touch()
    licence, shown_licence = LICENCES[own_card]
    teachers = {"code": {"path": "owner/code"}, "math": {"path": "owner/math"}}
    data = {"train": ["hub://owner/set?split=train", "own.parquet"]}
    step_dir = seal(
        saved / TWO_RANKS.name / "actor", tmp_path / "my-run", base=base, kind="opd", teachers=teachers, data=data
    )
    rows = [{"step": step, "val-core/gsm/acc/mean@4": step / 10} for step in (2, 5, STEP + 1)]
    rows[1]["val-core/odd/acc/mean@4"] = "NaN"
    (tmp_path / "my-run" / "attempts" / "0001").mkdir(parents=True)
    (tmp_path / "my-run" / "attempts" / "0001" / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    convert_checkpoint(Convert(checkpoint=str(step_dir), target=str(tmp_path / "out")))
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    expected = {
        "run_id": "my-run",
        "step": STEP,
        "attempt": 1,
        "spec_hash": SPEC_HASH,
        "checkpoint": str(step_dir),
        "world_size": 2,
        "dtype_mode": "base",
        "num_tensors_by_dtype": {"bfloat16": len(full_weights(saved, TWO_RANKS))},
        "base_model": base,
        "teachers": ["owner/code", "owner/math"],
        "validation": {"gsm": 0.5},
        "licence": licence,
        "warnings": [],
    }
    assert {key: record[key] for key in expected} == expected
    assert record["verification"] == {"num_tensors": 25}
    card = (tmp_path / "out" / "README.md").read_text()
    scores = "| Validation at step 5 | gsm 0.5 |"
    for shown in (f"# my-run, step {STEP}", "| Student | base |", "bfloat16", scores, shown_licence):
        assert shown in card
    assert str(tmp_path) not in card, "a path of this machine is of no use to others"
    assert yaml.safe_load(card.split("---\n")[1]) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["opd"],
        "datasets": ["owner/set"],
        **{name: value for name, value in licence.items() if name != "file"},
    }, "a folder of this machine is no base model of the hub"


def test_a_checkpoint_of_plain_verl_is_converted_by_its_path_alone(saved, tmp_path, monkeypatch, capfd):
    # As verl's default_local_dir lays it out, with what verl leaves next to the steps.
    experiment = tmp_path / "checkpoints" / "verl_examples" / "gsm8k"
    shutil.copytree(saved / TWO_RANKS.name / "actor", experiment / "global_step_20" / "actor")
    (experiment / "latest_checkpointed_iteration.txt").write_text("20")
    monkeypatch.setenv("CHECKPOINT_PATH", f"{experiment}/global_step_20/actor")
    assert main([]) == 0, capfd.readouterr().err
    written = experiment / "global_step_20-huggingface"
    model = AutoModelForCausalLM.from_pretrained(written, dtype="auto")
    assert model.dtype == torch.bfloat16  # what verl's own merger writes
    assert torch.equal(model.lm_head.weight, full_weights(saved, TWO_RANKS)["lm_head.weight"].bfloat16())
    record = json.loads((written / "conversion.json").read_text())
    assert (record["step"], record["dtype_mode"]) == (20, "bf16")
    assert any("base model is not known" in warning for warning in record["warnings"])


@pytest.mark.parametrize("is_trusted", [False, True])
def test_code_beside_a_checkpoint_runs_only_if_the_conversion_says_so_whatever_the_run_said(
    tmp_path, monkeypatch, is_trusted
):
    # transformers copies such code to a folder of the user's, and puts that on the import path for good.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    actor, run, ran = tmp_path / "actor", tmp_path / "my-run", tmp_path / "ran"
    (actor / "huggingface").mkdir(parents=True)
    save_alone({"weight": torch.ones(2)}, actor)
    own = {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
    }
    (actor / "huggingface" / "config.json").write_text(json.dumps(own))
    (actor / "huggingface" / "configuration_own.py").write_text(
        f"import pathlib\nfrom transformers import PretrainedConfig\npathlib.Path({str(ran)!r}).touch()\n\n\n"
        "class OwnConfig(PretrainedConfig):\n    model_type = 'own'\n"
    )
    step_dir = seal(actor, run, base="toy://student", world_size=1)
    spec = json.loads((run / "spec.json").read_text())
    spec["model"]["trust_remote_code"] = True
    (run / "spec.json").write_text(json.dumps(spec))
    options = Convert(
        checkpoint=str(step_dir), target=str(tmp_path / "out"), dtype="checkpoint", trust_remote_code=is_trusted
    )
    # Trusted, it comes as far as the model, of which there is no code.
    with pytest.raises(Exception, match="OwnConfig" if is_trusted else r"set convert\.trust_remote_code: true"):
        convert_checkpoint(options)
    assert ran.exists() == is_trusted


def test_experts_that_transformers_keeps_fused_are_written_under_the_hubs_names(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=VOCAB_ROWS,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    trained = Qwen3MoeForCausalLM(config).eval()
    trained.config.architectures = ["Qwen3MoeForCausalLM"]
    actor = tmp_path / "plain" / "actor"
    trained.config.save_pretrained(actor / "huggingface")
    save_alone(trained.state_dict(), actor)
    convert_checkpoint(Convert(checkpoint=str(actor), target=str(tmp_path / "out"), dtype="checkpoint"))
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert "model.layers.0.mlp.experts.3.up_proj.weight" in file.keys()  # noqa: SIM118 - not a dict
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert torch.allclose(model(input_ids=IDS).logits, trained(input_ids=IDS).logits, atol=1e-5)
