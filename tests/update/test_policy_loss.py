"""The policy losses of one pass are verl's, value and derivative, and so is the pass of its own over a whole micro-batch."""

import pytest
import torch
from tests.update.exact import actor_config, verls_loss
from verl.workers.config import ActorConfig

from opd.errors import Unfit
from opd.update.policy_loss import LOCAL, clip_counts, divisor_of, token_loss, token_weights, whole_loss

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LENGTHS = torch.tensor([5, 0, 9, 2])
MASK = torch.arange(9) < LENGTHS[:, None]
SIZES = {"batch_num_tokens": 16, "global_batch_size": 4}


def settings(loss_mode: str = "vanilla", agg_mode: str = "token-mean") -> ActorConfig:
    clips = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "clip_ratio_c": 1.5}
    scale = 7 if agg_mode.endswith("norm") else None
    return actor_config(loss_mode, agg_mode, kl_loss_coef=0.2, loss_scale_factor=scale, **clips)


@pytest.fixture
def tokens() -> dict[str, torch.Tensor]:
    """Log-probabilities of the current, old and reference policy, far enough apart that every clip is reached."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(4, int(LENGTHS.sum()), generator=generator, dtype=torch.float64)
    current = -drawn[0].abs()
    return {"current": current, "old": current + drawn[1] / 2, "reference": current + drawn[2], "advantages": drawn[3]}


def padded(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(MASK.shape, dtype=values.dtype).masked_scatter(MASK, values)


def verls(tokens, config: ActorConfig, kl: str | None = None) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Return verl's loss of the padded rows, its derivative by the tokens' log-probabilities, and its metrics."""
    current = tokens["current"].clone().requires_grad_()
    of_tokens = {name: padded(values) for name, values in (tokens | {"current": current}).items()}
    loss, metrics = verls_loss(config, MASK, **of_tokens, kl=kl)
    return loss.detach(), torch.autograd.grad(loss, current)[0], metrics


@pytest.mark.parametrize("agg_mode", MODES)
@pytest.mark.parametrize("loss_mode", LOCAL)
@pytest.mark.parametrize("kl", [None, "k1", "abs", "k2", "low_var_kl"])
def test_weights_and_token_losses_add_up_to_verls_loss(tokens, loss_mode, agg_mode, kl):
    config = settings(loss_mode, agg_mode)
    expected, slopes, _ = verls(tokens, config, kl)
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
    expected, slopes, _ = verls(tokens, config)
    divisor = divisor_of(config, **SIZES)
    given = {"old": tokens["old"], "advantages": tokens["advantages"], "sizes": SIZES}
    loss, found = whole_loss(tokens["current"], config=config, mask=MASK, **given)
    torch.testing.assert_close(loss / divisor, expected)
    torch.testing.assert_close(found / divisor, slopes)


def test_dro_alone_needs_its_beta():
    assert token_loss(actor_config("vanilla", "token-mean", dro_beta=None), kl=None).mode == "vanilla"
    with pytest.raises(Unfit, match="loss_mode dro needs it; set a positive number"):
        token_loss(actor_config("dro", "token-mean", dro_beta=None), kl=None)


def test_clip_counts_are_verls_means_over_tokens(tokens):
    config = settings()
    means = verls(tokens, config)[2]
    found = clip_counts(token_loss(config, kl=None).clips, tokens["current"], tokens["old"], tokens["advantages"])
    assert means == {f"actor/{name}": pytest.approx(value.item() / 16, rel=1e-6) for name, value in found.items()}
    assert all(value > 0 for name, value in means.items() if name != "actor/ppo_kl")
