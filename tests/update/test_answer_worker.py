"""The worker of supervised fine-tuning: transformers' own cross-entropy and gradient in float64, however a batch is cut."""

from __future__ import annotations

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import save_model
from tests.update.test_worker_invariance import DYNAMIC, ULYSSES
from tests.update.workers import Case, run_cases
from transformers import AutoModelForCausalLM

ROWS = uneven_rows()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), hidden=32, layers=2, rows=64, tied=False, seed=1)


@pytest.fixture(scope="module")
def reference(model) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean cross-entropy of the trained tokens and its gradient: one row at a time, in float64, with labels for a mask."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")
    num_tokens = sum(sum(row["mask"]) for row in ROWS)
    loss = 0.0
    for row in ROWS:
        if not any(row["mask"]):
            continue
        ids = torch.tensor([row["prompt"] + row["response"]])
        wanted = [token if flag else -100 for token, flag in zip(row["response"], row["mask"], strict=True)]
        labels = torch.tensor([[-100] * len(row["prompt"]) + wanted])
        part = plain(input_ids=ids, labels=labels).loss * sum(row["mask"]) / num_tokens
        part.backward()
        loss += part.item()
    return loss, {name: parameter.grad for name, parameter in plain.named_parameters()}


def _check(found, reference) -> None:
    loss, gradients = reference
    assert found["measured"] == pytest.approx(loss, rel=1e-6)
    assert found["update"]["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["update"]["num_tokens"] == sum(sum(row["mask"]) for row in ROWS)
    assert (found["update"]["num_updates"], found["update"]["skipped"]) == (1, 0)
    assert not found["has_rollout"]
    assert set(found["gradients"]) == set(gradients)
    for name, gradient in gradients.items():
        scale = gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(found["gradients"][name].double(), gradient, rtol=1e-5, atol=2e-6 * scale, msg=name)


@pytest.mark.slow
def test_loss_and_gradient_are_those_of_transformers_in_float64_however_the_batch_is_cut(model, reference):
    shared = {"student": model, "teacher": model, "rows": ROWS, "method": "answers"}
    cases = {
        "one micro-batch": Case(**shared),
        "a row each": Case(**shared, micro_batch=1),
        "padded": Case(**shared, micro_batch=4, remove_padding=False),
        "measured by more rows than divide them": Case(**shared, sets=["actor.log_prob_micro_batch_size_per_gpu=3"]),
        "token budget": Case(**shared, overrides=DYNAMIC),
    }
    for found in run_cases(list(cases.values())):
        _check(found, reference)


@pytest.mark.slow
def test_two_ranks_and_ranks_that_share_sequences_give_the_same(model, reference):
    shared = {"student": model, "teacher": model, "rows": ROWS, "method": "answers"}
    for found in run_cases([Case(**shared, micro_batch=2), Case(**shared, micro_batch=4, overrides=ULYSSES)], world=2):
        _check(found, reference)
