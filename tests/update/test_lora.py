"""LoRA students through the worker: the adapters have the gradients of the plain model that they make, in float64, however cut."""

import pytest
import torch
from tests.update.exact import check, check_answers, cut, expected, in_ways, load, of_answers, run
from tests.update.models import save_model, uneven_rows
from tests.update.workers import Case
from transformers import AutoModelForCausalLM

from opd.lora import plain_tensors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RANK, ALPHA = 3, 6
LORA = [f"model.lora.rank={RANK}", f"model.lora.alpha={ALPHA}", "actor.learning_rate=3e-2"]
SOME_WAYS = [(1, name) for name in ("all", "padded", "token budget", "left to the plan")]
SOME_WAYS += [(2, name) for name in ("8 micro-batches", "padded", "shared sequence")]
LINEARS = 7  # of a layer: q, k, v, o, gate, up, down


@pytest.fixture(scope="module")
def cases(pair, tmp_path_factory) -> dict:
    tied = save_model(tmp_path_factory.mktemp("tied"), hidden=32, layers=2, rows=64, tied=True, seed=3)
    # The second step's: in the first one B is 0, and so is the gradient of A.
    case = Case(student=pair["student"], teacher=pair["teacher"], rows=uneven_rows(), sets=LORA, num_steps=2)
    return in_ways(case, *SOME_WAYS) | {
        (1, "checkpointing"): cut(case, sets=["actor.gradient_checkpointing=true"]),
        (1, "some layers"): cut(case, student=tied, sets=["model.lora.target_modules=[q_proj, down_proj]"]),
        (2, "tied"): cut(case, student=tied, micro_batch=2),
        (1, "another seed"): cut(case, sets=["seed=7"]),
        (1, "half precision"): cut(case, sets=["actor.dtype=bf16"]),
        (1, "answers"): cut(case, method="answers", num_steps=1),
    }


@pytest.fixture(scope="module")
def runs(cases) -> dict:
    return run(cases)


def _plain(stored: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return (weights of the plain model, the stored ones, of which the adapters take a gradient) in float64."""
    leaves = {name: value.double().requires_grad_(".lora_" in name) for name, value in stored.items()}
    plain = {}
    for name in stored:
        if ".lora_" in name:
            continue
        layer = name.removesuffix(".base_layer.weight")
        value = leaves[name]
        if layer != name:
            up, down = (leaves[f"{layer}.lora_{part}.default.weight"] for part in "BA")
            value = value + (ALPHA / RANK) * up @ down
        plain[name.removeprefix("base_model.model.").replace(".base_layer", "")] = value
    return plain, leaves


def _reference(case: Case, found: dict, form=expected) -> dict:
    plain, leaves = _plain(found["weights_before"])
    model = load(case.student)

    def student(input_ids: torch.Tensor):
        return torch.func.functional_call(model, plain, kwargs={"input_ids": input_ids}, tie_weights=False)

    return form(case, student=student, leaves=leaves)


@pytest.mark.parametrize("way", [*SOME_WAYS, (1, "checkpointing"), (1, "some layers"), (2, "tied")], ids=str)
def test_only_adapters_move_by_the_gradient_of_the_plain_model(cases, runs, way):
    found = runs[way]
    check(found, _reference(cases[way], found))
    assert len(found["gradients"]) == 2 * 2 * (2 if way[1] == "some layers" else LINEARS)
    for name, before in found["weights_before"].items():
        assert torch.equal(before, found["weights"][name]) == (".lora_" not in name), name


@pytest.mark.parametrize("way", [(1, "all"), (2, "8 micro-batches"), (2, "tied")], ids=str)
def test_the_rollout_server_gets_the_plain_model(cases, runs, way):
    wanted = _plain(runs[way]["weights"])[0]
    start = AutoModelForCausalLM.from_pretrained(cases[way].student).state_dict()
    assert runs[way]["served"].keys() == start.keys()
    for name, weight in runs[way]["served"].items():
        torch.testing.assert_close(weight.double(), wanted[name].detach(), rtol=1e-6, atol=1e-7, msg=name)
        assert torch.equal(weight, start[name]) == (not name.endswith("_proj.weight")), name


def test_adapters_are_drawn_from_the_runs_seed(runs):
    def drawn(found) -> torch.Tensor:
        return torch.cat(
            [w.flatten() for n, w in found["weights_before"].items() if n.endswith("lora_A.default.weight")]
        )

    assert not torch.allclose(drawn(runs[1, "all"]), drawn(runs[1, "another seed"]))
    # In the first step B is 0, and A's gradient with it: A is what was drawn.
    assert torch.equal(drawn(runs[1, "all"]), drawn(runs[2, "8 micro-batches"]))


def test_a_frozen_model_is_kept_in_the_precision_that_it_computes_in_and_adapters_in_fp32(runs):
    found = runs[1, "half precision"]
    for name, weight in found["weights"].items():
        assert weight.dtype == (torch.float32 if ".lora_" in name else torch.bfloat16), name
    assert found["has_moved"]
    assert found["metrics"]["opd/loss"] == pytest.approx(runs[1, "all"]["metrics"]["opd/loss"], rel=0.05)
    product = found["served"]["model.layers.0.mlp.up_proj.weight"]
    assert product.dtype == torch.float32, "the product is not rounded before it is added"


def test_answers_teach_adapters_by_the_same_gradient(cases, runs):
    found = runs[1, "answers"]
    check_answers(found, _reference(cases[1, "answers"], found, of_answers))


def test_an_adapter_of_another_form_is_refused_by_name():
    names = ["base_model.model.model.embed_tokens.lora_embedding_A.default"]
    with pytest.raises(ValueError, match="lora_embedding_A"):
        plain_tensors(names)
    with pytest.raises(ValueError, match=r"q_proj.base_layer.weight: its adapter .* is missing"):
        plain_tensors(["base_model.model.q_proj.base_layer.weight", "base_model.model.q_proj.lora_A.default.weight"])
