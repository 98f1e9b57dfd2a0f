"""A mixture-of-experts teacher through the worker: loss and gradient are those of its whole model in float64, however a batch is cut."""

from __future__ import annotations

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import VOCAB, save_experts, save_model
from tests.update.test_worker_invariance import DYNAMIC, LEFT_TO_THE_PLAN
from tests.update.workers import Case, run_cases
from transformers import AutoModelForCausalLM, Qwen3MoeForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROWS = uneven_rows()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    return {
        "student": save_model(base / "student", hidden=32, layers=2, rows=64, tied=False, seed=1),
        "teacher": save_experts(base / "teacher", hidden=48, layers=2, rows=96, seed=2),
    }


def _twice(folders, **cut) -> Case:
    """The mixture as two of several teachers, half of the rows each."""
    rows = [row | {"teacher": number % 2} for number, row in enumerate(ROWS)]
    of = {"a": folders["teacher"], "b": folders["teacher"]}
    return Case(student=folders["student"], teacher="", teachers=of, rows=rows, **cut)


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    cases = {
        "all": Case(**folders, rows=ROWS),
        "padded": Case(**folders, rows=ROWS, remove_padding=False, micro_batch=4),
        "8 micro-batches": Case(**folders, rows=ROWS, micro_batch=1),
        "token budget": Case(**folders, rows=ROWS, overrides=DYNAMIC),
        "left to the plan": Case(**folders, rows=ROWS, sets=LEFT_TO_THE_PLAN),
        "beside itself": _twice(folders),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    cases = {
        "8 micro-batches": Case(**folders, rows=ROWS, micro_batch=1),
        "padded": Case(**folders, rows=ROWS, remove_padding=False, micro_batch=2),
        "token budget": Case(**folders, rows=ROWS, micro_batch=4, overrides=DYNAMIC),
        "beside itself": _twice(folders, micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


@pytest.fixture(scope="module")
def reference(folders) -> dict:
    """Reverse KL of every row from the whole models' logits in float64."""
    student, teacher = (
        AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float64, **options)
        for name, options in (("student", {}), ("teacher", {"experts_implementation": "eager"}))
    )
    assert isinstance(teacher, Qwen3MoeForCausalLM)
    visited: list[torch.Tensor] = []
    for layer in teacher.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _module, _inputs, output: visited.append(output[-1]))
    total = torch.zeros((), dtype=torch.float64)
    for row in ROWS:
        ids = torch.tensor([row["prompt"] + row["response"]])

        def log_probs(model, ids=ids, first=len(row["prompt"]) - 1) -> torch.Tensor:
            return model(input_ids=ids).logits[0, first:-1, :VOCAB].log_softmax(-1)

        with torch.no_grad():
            wanted = log_probs(teacher)
        own = log_probs(student)
        total = total + row["weight"] * ((own.exp() * (own - wanted)).sum(-1) * torch.tensor(row["mask"])).sum()
    loss = total / sum(sum(row["mask"]) for row in ROWS)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in student.named_parameters()}
    return {"loss": loss.item(), "gradients": gradients, "visited": torch.cat(visited).unique().tolist()}


CUTS = [
    (1, "all"),
    (1, "padded"),
    (1, "8 micro-batches"),
    (1, "token budget"),
    (1, "left to the plan"),
    (1, "beside itself"),
    (2, "8 micro-batches"),
    (2, "padded"),
    (2, "token budget"),
    (2, "beside itself"),
]


@pytest.mark.parametrize(("world", "cut"), CUTS)
def test_loss_and_gradient_are_those_of_the_mixtures_whole_distribution(reference, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    assert reference["visited"] == list(range(6)), "every expert has a say"
    assert found["metrics"]["opd/loss"] == pytest.approx(reference["loss"], rel=1e-5)
    for name, expected in reference["gradients"].items():
        difference = (found["gradients"][name].double() - expected).norm()
        assert difference <= 1e-4 * expected.norm(), name
