"""The policy losses of one pass are verl's, value and derivative, and so is the pass of its own over a whole micro-batch."""

from __future__ import annotations

import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

from opd.update.policy_loss import LOCAL, clip_counts, divisor_of, token_loss, token_weights, whole_loss

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LENGTHS = torch.tensor([5, 0, 9, 2])
MASK = torch.arange(9) < LENGTHS[:, None]
SIZES = {"batch_num_tokens": 16, "global_batch_size": 4}


def settings(loss_mode: str = "vanilla", agg_mode: str = "token-mean") -> ActorConfig:
    return ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.1,
        clip_ratio_high=0.3,
        clip_ratio_c=1.5,
        kl_loss_coef=0.2,
        loss_agg_mode=agg_mode,
        loss_scale_factor=7 if agg_mode.endswith("norm") else None,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, dro_beta=0.5),
    )


@pytest.fixture
def tokens() -> dict[str, torch.Tensor]:
    """Log-probabilities of the current, old and reference policy, far enough apart that every clip is reached."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(4, int(LENGTHS.sum()), generator=generator, dtype=torch.float64)
    current = -drawn[0].abs()
    return {"current": current, "old": current + drawn[1] / 2, "reference": current + drawn[2], "advantages": drawn[3]}


def padded(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(MASK.shape, dtype=values.dtype).masked_scatter(MASK, values)


def verls(tokens, config: ActorConfig, kl: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's loss of the padded rows, and its derivative by the tokens' log-probabilities."""
    current = tokens["current"].clone().requires_grad_()
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=16, global_batch_size=4, loss_scale_factor=config.loss_scale_factor
    )
    loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=padded(tokens["old"]),
        log_prob=padded(current),
        advantages=padded(tokens["advantages"]),
        response_mask=MASK,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    if kl is not None:
        estimate = kl_penalty(padded(current), padded(tokens["reference"]), kl)
        loss = loss + config.kl_loss_coef * agg_loss(estimate, MASK, config.loss_agg_mode, **config.global_batch_info)
    return loss.detach(), torch.autograd.grad(loss, current)[0]


@pytest.mark.parametrize("agg_mode", MODES)
@pytest.mark.parametrize("loss_mode", LOCAL)
@pytest.mark.parametrize("kl", [None, "k1", "abs", "k2", "low_var_kl"])
def test_weights_and_token_losses_add_up_to_verls_loss(tokens, loss_mode, agg_mode, kl):
    config = settings(loss_mode, agg_mode)
    expected, slopes = verls(tokens, config, kl)
    current = tokens["current"].clone().requires_grad_()
    inputs = torch.stack([tokens["advantages"], tokens["reference"]], dim=1)
    losses = token_weights(config, LENGTHS) * token_loss(config, kl=kl)(current, tokens["old"], inputs)
    loss = losses.sum() / divisor_of(config, **SIZES)
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(loss, current)[0], slopes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("agg_mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("loss_mode", ["vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo"])
def test_the_general_form_is_verls_function_over_the_rows(tokens, loss_mode, agg_mode):
    config = settings(loss_mode, agg_mode)
    expected, slopes = verls(tokens, config, None)
    divisor = divisor_of(config, **SIZES)
    given = {"old": tokens["old"], "advantages": tokens["advantages"], "sizes": SIZES}
    loss, found = whole_loss(tokens["current"], config=config, mask=MASK, **given)
    torch.testing.assert_close(loss / divisor, expected)
    torch.testing.assert_close(found / divisor, slopes)


def test_clip_counts_are_verls_means_over_tokens(tokens):
    config = settings()
    config.global_batch_info.update(dp_size=1, batch_num_tokens=16, global_batch_size=4, loss_scale_factor=None)
    _, means = get_policy_loss_fn("vanilla")(
        old_log_prob=padded(tokens["old"]),
        log_prob=padded(tokens["current"]),
        advantages=padded(tokens["advantages"]),
        response_mask=MASK,
        loss_agg_mode="token-mean",
        config=config,
    )
    found = clip_counts(token_loss(config, kl=None).clips, tokens["current"], tokens["old"], tokens["advantages"])
    assert means == {f"actor/{name}": pytest.approx(value.item() / 16, rel=1e-6) for name, value in found.items()}
    assert all(value > 0 for name, value in means.items() if name != "actor/ppo_kl")
