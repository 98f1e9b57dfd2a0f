"""GRPO's update is verl's formulas over a float64 model, however its rows are cut and shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import save_model
from tests.update.test_worker_invariance import DYNAMIC, ULYSSES
from tests.update.workers import Case, run_cases, told_log_probs
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = uneven_rows()
SETS = ("grpo.kl_loss_coef=0.1", "grpo.kl_loss_type=low_var_kl", "grpo.entropy_coeff=0.01")
CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
MASK = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["mask"]) for row in ROWS], batch_first=True).bool()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), hidden=32, layers=2, rows=64, tied=False, seed=1)


@pytest.fixture(scope="module")
def plain(model) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")


def read_by(plain: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the responses' tokens, padded [B, T]."""
    found = []
    for row in ROWS:
        log_p = plain(torch.tensor([row["prompt"] + row["response"]])).logits[0].log_softmax(-1)
        log_p = log_p[len(row["prompt"]) - 1 : -1]
        picked = log_p.gather(1, torch.tensor(row["response"])[:, None])[:, 0]
        found.append(torch.stack([picked, -(log_p.exp() * log_p).sum(-1)], 1))
    both = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
    return both[..., 0], both[..., 1]


def padded(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True).double()


def expected(plain: torch.nn.Module, loss_mode: str, agg_mode: str) -> tuple[float, dict[str, torch.Tensor]]:
    """verl's loss of all rows as one mini-batch, and its gradients."""
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=agg_mode,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode),
        **CLIPS,
    )
    batch: dict[str, Any] = {"dp_size": 1, "batch_num_tokens": int(MASK.sum()), "global_batch_size": len(ROWS)}
    config.global_batch_info.update(batch)
    responses = [torch.tensor(row["response"]).double() for row in ROWS]
    log_prob, entropy = read_by(plain)
    loss, _ = get_policy_loss_fn(loss_mode)(
        old_log_prob=padded([told_log_probs(response, "old") for response in responses]),
        log_prob=log_prob,
        advantages=padded([torch.sin(response) for response in responses]),
        response_mask=MASK,
        loss_agg_mode=agg_mode,
        config=config,
    )
    estimate = kl_penalty(log_prob, padded([told_log_probs(one, "reference") for one in responses]), "low_var_kl")
    loss = loss + 0.1 * agg_loss(estimate, MASK, agg_mode, **batch) - 0.01 * agg_loss(entropy, MASK, agg_mode, **batch)
    plain.zero_grad()
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in plain.named_parameters()}


def check(found: dict[str, Any], plain: torch.nn.Module, loss_mode: str, agg_mode: str) -> None:
    assert "error" not in found, found["error"]
    loss, gradients = expected(plain, loss_mode, agg_mode)
    assert found["update"]["actor/loss"] == pytest.approx(loss, rel=1e-5)
    assert set(found["gradients"]) == set(gradients)
    for name, gradient in gradients.items():
        scale = gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(found["gradients"][name].double(), gradient, rtol=1e-5, atol=3e-6 * scale, msg=name)


def case(model: str, loss_mode: str = "vanilla", agg_mode: str = "token-mean", **more: Any) -> Case:
    own = [f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}"]
    sets = [*SETS, f"grpo.loss_agg_mode={agg_mode}", *(f"grpo.{name}={value}" for name, value in CLIPS.items())]
    overrides = own + list(more.pop("overrides", []))
    return Case(student=model, teacher=model, rows=ROWS, method="policy", sets=sets, overrides=overrides, **more)


def test_the_update_is_verls_formula_in_float64_however_rows_are_cut(model, plain):
    asked = [
        (("vanilla", "token-mean"), {}),
        (("vanilla", "seq-mean-token-mean"), {"micro_batch": 1}),
        (("gspo", "seq-mean-token-mean"), {"micro_batch": 2}),
        (("cispo", "seq-mean-token-sum"), {"overrides": DYNAMIC}),
    ]
    results = run_cases([case(model, *modes, **more) for modes, more in asked])
    for found, (modes, _) in zip(results, asked, strict=True):
        check(found, plain, *modes)
        with torch.no_grad():
            log_prob = read_by(plain)[0][MASK]
        for role in ("actor", "ref"):
            torch.testing.assert_close(found["log_probs"][role].double(), log_prob, rtol=1e-5, atol=1e-5)


def test_two_ranks_and_ranks_that_share_sequences_give_the_same(model, plain):
    for found in run_cases([case(model, micro_batch=2), case(model, micro_batch=4, overrides=ULYSSES)], world=2):
        check(found, plain, "vanilla", "token-mean")


def test_the_exact_kl_to_the_reference_is_zero_where_the_model_is_its_reference(model):
    exact = case(model)
    exact.sets.append("grpo.kl_loss_type=full")
    (found,) = run_cases([exact])
    assert found["update"]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)


def steps(model: str, *sets: str, **more: Any) -> Case:
    """Two steps of two updates each."""
    asked = case(model, num_steps=2, mini_batch=4, micro_batch=2, **more)
    asked.method = "policy steps"
    asked.sets.extend(sets)
    return asked


def test_a_killed_run_goes_on_bit_for_bit(model, tmp_path):
    folder = str(tmp_path / "global_step_1")
    whole, resumed = run_cases([steps(model, saves_to=folder), steps(model, resumes_from=folder)])
    assert not torch.equal(whole["weights"]["lm_head.weight"], whole["weights_before"]["lm_head.weight"])
    for part in ("weights_before", "weights"):
        for name, weight in whole[part].items():
            assert torch.equal(weight, resumed[part][name]), name
    told = {
        name: value for name, value in whole["update"].items() if name.startswith("actor/") and "/perf/" not in name
    }
    assert told == {name: resumed["update"][name] for name in told}


def test_adapters_train_against_the_model_without_them(model, plain):
    lora = ("model.lora.rank=3", "model.lora.alpha=6", "actor.learning_rate=3e-2")
    (found,) = run_cases([steps(model, *lora)])
    moved = {
        name for name, weight in found["weights"].items() if not torch.equal(weight, found["weights_before"][name])
    }
    assert moved == {name for name in found["weights"] if ".lora_" in name}
    with torch.no_grad():
        log_prob = read_by(plain)[0][MASK]
    torch.testing.assert_close(found["reference"].double(), log_prob, rtol=1e-5, atol=1e-5)
    assert found["update"]["actor/kl_loss"] > 0
