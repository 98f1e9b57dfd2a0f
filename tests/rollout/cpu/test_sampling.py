import numpy as np
import pytest
import torch

from opd.rollout.cpu.sampling import SamplingParams, choose_tokens, uniform


def choose(logits, temperature=1.0, top_k=0, top_p=1.0, uniform=0.5, forced=None):
    rows = logits.shape[0]
    return choose_tokens(
        logits,
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        uniform=torch.as_tensor(uniform, dtype=torch.float64).expand(rows),
        forced=torch.full((rows,), -1) if forced is None else forced,
    )


def naive_filter(logits, top_k, top_p):
    """Kept token ids of one row, by the definition: k largest with ties, then the smallest set that holds top_p."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = (
        order if not top_k else [token for token in order if logits[token] >= logits[order[min(top_k, len(order)) - 1]]]
    )
    weights = np.exp(np.array([logits[token] for token in kept], dtype=np.float64))
    weights /= weights.sum()
    mass, nucleus = 0.0, []
    for token, weight in zip(kept, weights, strict=True):
        if top_p < 1.0 and mass >= top_p:
            break
        nucleus.append(token)
        mass += weight
    return sorted(nucleus)


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (41, 1.0), (99, 1.0), (0, 0.5), (0, 0.01), (7, 0.8)]
)
def test_top_k_and_top_p_keep_what_the_definition_keeps(top_k, top_p):
    logits = torch.randn(16, 41, generator=torch.Generator().manual_seed(1)) * 2
    for row in logits:
        _, logprobs = choose(row.expand(41, -1), top_k=top_k, top_p=top_p, forced=torch.arange(41))
        assert torch.isfinite(logprobs).nonzero()[:, 0].tolist() == naive_filter(row.tolist(), top_k, top_p)
        assert logprobs.double().exp().sum().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.7, 6, 1.0), (1.0, 0, 0.7)]
)
def test_samples_follow_the_filtered_distribution(temperature, top_k, top_p):
    num_draws = 20_000
    row = torch.randn(12, generator=torch.Generator().manual_seed(2))
    draws = [uniform(3, position) for position in range(num_draws)]
    tokens, _ = choose(row.expand(num_draws, -1), temperature, top_k, top_p, uniform=draws)
    scaled = (row / temperature).double().numpy()
    kept = naive_filter(scaled.tolist(), top_k, top_p)
    expected = np.exp(scaled[kept]) / np.exp(scaled[kept]).sum() * num_draws
    counts = np.bincount(tokens.numpy(), minlength=12)
    assert counts.sum() == counts[kept].sum()
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < 31.3  # 99.9 % quantile at 11 degrees of freedom, an upper bound for fewer; the seed is fixed


def parsed(**params):
    return SamplingParams.of(params, max_tokens=30, room=40, eos_token_ids=frozenset({2, 5}))


def test_a_request_gets_the_defaults_of_the_run_and_what_fits():
    assert parsed() == SamplingParams(max_tokens=30, stop_token_ids=frozenset({2, 5}))
    assert [parsed(max_tokens=num).max_tokens for num in (7, 99, 0)] == [7, 40, 1]
    assert parsed(ignore_eos=True, stop_token_ids=[9]).stop_token_ids == {9}
    assert parsed(top_k=-1) == parsed()


@pytest.mark.parametrize("params", [{"min_p": 0.1}, {"prompt_logprobs": 0}, {"repetition_penalty": 1.1}])
def test_what_cannot_be_honoured_is_refused_by_name(params):
    [(key, value)] = params.items()
    with pytest.raises(ValueError, match=f"{key}={value}"):
        parsed(**params)
