"""GRPO's worker: ranks that share sequences compute what one rank computes, without the flash-attn package."""

from __future__ import annotations

import pytest
import torch
from tests.worker.batches import uneven_rows
from tests.worker.models import save_model
from tests.worker.workers import Case, run_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def _case(model: str, num_sharing: int) -> Case:
    overrides = [
        f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={num_sharing}",
        f"actor_rollout_ref.ref.ulysses_sequence_parallel_size={num_sharing}",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
    ]
    return Case(student=model, teacher=model, rows=uneven_rows(), micro_batch=4, overrides=overrides, method="policy")


def test_two_ranks_that_share_sequences_have_the_log_probabilities_and_gradients_of_one(tmp_path):
    model = save_model(tmp_path / "model", hidden=32, layers=2, rows=64, tied=False, seed=1)
    (one,) = run_cases([_case(model, 1)])
    (two,) = run_cases([_case(model, 2)], world=2)
    for role in ("actor", "ref"):
        torch.testing.assert_close(two["log_probs"][role], one["log_probs"][role], rtol=1e-5, atol=1e-5)
    assert set(two["gradients"]) == set(one["gradients"])
    for name, gradient in one["gradients"].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(two["gradients"][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
