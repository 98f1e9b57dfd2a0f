"""LoRA students through the worker: the adapters' gradients are those of the plain model that they make, in float64, however cut."""

from __future__ import annotations

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import VOCAB, save_model
from tests.update.test_worker_invariance import CHECKPOINTING, DYNAMIC, LEFT_TO_THE_PLAN, ULYSSES
from tests.update.workers import Case, run_cases
from transformers import Qwen3ForCausalLM

from opd.lora import plain_tensors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RANK, ALPHA = 3, 6
LORA = [f"model.lora.rank={RANK}", f"model.lora.alpha={ALPHA}", "actor.learning_rate=3e-2"]
ROWS = uneven_rows()
LINEARS = 7  # of a layer: q, k, v, o, gate, up, down


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    sizes = {
        "untied": {"hidden": 32, "layers": 2, "rows": 64, "tied": False, "seed": 1},
        "tied": {"hidden": 32, "layers": 2, "rows": 64, "tied": True, "seed": 3},
        "teacher": {"hidden": 48, "layers": 3, "rows": 96, "tied": False, "seed": 2},
    }
    return {name: save_model(base / name, **size) for name, size in sizes.items()}


def _case(folders, *overrides, student="untied", sets=(), **cut) -> Case:
    # The second step's: in the first one B is 0, and so is the gradient of A.
    return Case(
        student=folders[student], teacher=folders["teacher"], rows=ROWS, overrides=list(overrides), sets=[*LORA, *sets],
        num_steps=2, **cut,
    )  # fmt: skip


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    some = ["model.lora.target_modules=[q_proj, down_proj]"]
    cases = {
        "all": _case(folders),
        "padded": _case(folders, remove_padding=False, micro_batch=4),
        "8 micro-batches": _case(folders, micro_batch=1),
        "token budget": _case(folders, *DYNAMIC),
        "checkpointing": _case(folders, *CHECKPOINTING),
        "left to the plan": _case(folders, sets=LEFT_TO_THE_PLAN),
        "some layers": _case(folders, student="tied", sets=some),
        "another seed": _case(folders, sets=["seed=7"]),
        "half precision": _case(folders, sets=["actor.dtype=bf16"]),
        "answers": Case(student=folders["untied"], teacher=folders["teacher"], rows=ROWS, sets=LORA, method="answers"),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    cases = {
        "8 micro-batches": _case(folders, micro_batch=1),
        "padded": _case(folders, remove_padding=False, micro_batch=2),
        "token budget": _case(folders, *DYNAMIC, micro_batch=4),
        "tied": _case(folders, student="tied", micro_batch=2),
        "shared sequence": _case(folders, *ULYSSES, micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _plain(stored: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(weights of the plain model, the stored ones, of which the adapters take a gradient), in float64."""
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


def _log_probs(model: Qwen3ForCausalLM, weights, row: dict, vocab: int = VOCAB) -> torch.Tensor:
    """[response, vocab] of one row alone."""
    ids = torch.tensor([row["prompt"] + row["response"]])
    found = torch.func.functional_call(model, weights, kwargs={"input_ids": ids}, tie_weights=False)
    return found.logits[0, len(row["prompt"]) - 1 : -1, :vocab].log_softmax(-1)


def _reference(folders, student: str, stored, *, answers: bool = False) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean reverse KL (or cross-entropy) of all trained tokens, and its gradient by the adapters."""
    plain, leaves = _plain(stored)
    model, teacher = (
        Qwen3ForCausalLM.from_pretrained(folders[name], dtype=torch.float64) for name in (student, "teacher")
    )
    total = torch.zeros((), dtype=torch.float64)
    for row in ROWS:
        mask = torch.tensor(row["mask"], dtype=torch.float64)
        # Cross-entropy is verl's own, over every row of the head.
        own = _log_probs(model, plain, row, vocab=64 if answers else VOCAB)
        if answers:
            per_token = -own.gather(1, torch.tensor(row["response"])[:, None])[:, 0]
        else:
            with torch.no_grad():
                wanted = _log_probs(teacher, {}, row)
            per_token = row["weight"] * (own.exp() * (own - wanted)).sum(-1)
        total = total + (per_token * mask).sum()
    loss = total / sum(sum(row["mask"]) for row in ROWS)
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.requires_grad}


def _check(found, folders, student: str) -> None:
    loss, expected = _reference(folders, student, found["weights_before"])
    assert found["metrics"]["opd/loss"] == pytest.approx(loss, rel=1e-5)
    assert set(found["gradients"]) == set(expected), "of the adapters, and of nothing else"
    for name, gradient in expected.items():
        assert gradient.norm() > 0, name
        assert (found["gradients"][name].double() - gradient).norm() <= 1e-4 * gradient.norm(), name
    for name, before in found["weights_before"].items():
        assert torch.equal(before, found["weights"][name]) == (name not in expected), name


ONE = ("all", "padded", "8 micro-batches", "token budget", "checkpointing", "left to the plan", "some layers")
TWO = ("8 micro-batches", "padded", "token budget", "tied", "shared sequence")
CUTS = [*((1, cut) for cut in ONE), *((2, cut) for cut in TWO)]


@pytest.mark.parametrize(("world", "cut"), CUTS)
def test_only_adapters_move_by_the_gradient_of_the_plain_model(folders, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    _check(found, folders, "tied" if cut in ("tied", "some layers") else "untied")
    layers = 2 * 2 if cut == "some layers" else 2 * LINEARS
    assert len(found["gradients"]) == 2 * layers


@pytest.mark.parametrize(("world", "cut"), [(1, "all"), (2, "8 micro-batches"), (2, "tied")])
def test_the_rollout_server_gets_the_plain_model(folders, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    expected = _plain(found["weights"])[0]
    start = Qwen3ForCausalLM.from_pretrained(folders["tied" if cut == "tied" else "untied"])
    assert set(found["served"]) == set(start.state_dict())
    for name, weight in found["served"].items():
        torch.testing.assert_close(weight.double(), expected[name].detach(), rtol=1e-6, atol=1e-7, msg=name)
        frozen = torch.equal(weight, start.state_dict()[name])
        assert frozen == (not name.endswith("_proj.weight")), name


def test_adapters_are_drawn_from_the_runs_seed(one_rank, two_ranks):
    def drawn(found) -> torch.Tensor:
        return torch.cat(
            [w.flatten() for n, w in found["weights_before"].items() if n.endswith("lora_A.default.weight")]
        )

    assert not torch.allclose(drawn(one_rank["all"]), drawn(one_rank["another seed"]))
    # In the first step B is 0, and A's gradient with it: A is what was drawn.
    assert torch.equal(drawn(one_rank["all"]), drawn(two_ranks["8 micro-batches"]))


def test_a_frozen_model_is_kept_in_the_precision_that_it_computes_in_and_adapters_in_fp32(one_rank):
    found = one_rank["half precision"]
    for name, weight in found["weights"].items():
        assert weight.dtype == (torch.float32 if ".lora_" in name else torch.bfloat16), name
    assert found["has_moved"]
    assert found["metrics"]["opd/loss"] == pytest.approx(one_rank["all"]["metrics"]["opd/loss"], rel=0.05)
    served = {name: weight.dtype for name, weight in found["served"].items()}
    assert served["model.layers.0.mlp.up_proj.weight"] == torch.float32, "the product is not rounded before it is added"


def test_answers_teach_adapters_by_the_same_gradient(folders, one_rank):
    found = one_rank["answers"]
    loss, expected = _reference(folders, "untied", found["weights_before"], answers=True)
    assert found["update"]["loss"] == pytest.approx(loss, rel=1e-6)
    assert set(found["gradients"]) == set(expected)
    for name, gradient in expected.items():
        assert gradient.norm() > 0 or "lora_A" in name, name
        difference = (found["gradients"][name].double() - gradient).norm()
        assert difference <= 1e-5 * gradient.norm() + 1e-12, name


def test_an_adapter_of_another_form_is_refused_by_name():
    names = ["base_model.model.model.embed_tokens.lora_embedding_A.default"]
    with pytest.raises(ValueError, match="lora_embedding_A"):
        plain_tensors(names)
    with pytest.raises(ValueError, match=r"q_proj.base_layer.weight: its adapter .* is missing"):
        plain_tensors(["base_model.model.q_proj.base_layer.weight", "base_model.model.q_proj.lora_A.default.weight"])
