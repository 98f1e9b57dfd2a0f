import numpy as np
import pytest
import torch

from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.sampling import choose_tokens, parse_sampling_params, uniforms

CONFIG = EngineConfig(
    vocab_size=41, max_model_len=100, prompt_length=20, response_length=30, eos_token_ids=(2, 5), ignore_eos=False
)


def choose(logits, temperature=1.0, top_k=0, top_p=1.0, uniform=0.5, **kwargs):
    rows = logits.shape[0]
    return choose_tokens(
        logits,
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        uniform=torch.as_tensor(uniform, dtype=torch.float64).expand(rows),
        **kwargs,
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
    draws = uniforms(np.full(num_draws, 3, np.uint64), np.arange(num_draws, dtype=np.uint64))
    tokens, _ = choose(row.expand(num_draws, -1), temperature, top_k, top_p, uniform=torch.from_numpy(draws))
    scaled = (row / temperature).double().numpy()
    kept = naive_filter(scaled.tolist(), top_k, top_p)
    expected = np.exp(scaled[kept]) / np.exp(scaled[kept]).sum() * num_draws
    counts = np.bincount(tokens.numpy(), minlength=12)
    assert counts.sum() == counts[kept].sum()
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < 31.3  # 99.9 % quantile at 11 degrees of freedom, an upper bound for fewer; the seed is fixed


def test_a_row_is_the_same_beside_rows_that_are_filtered_or_greedy():
    logits = torch.randn(3, 41, generator=torch.Generator().manual_seed(3))
    uniform = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    alone = choose(logits, 0.7, uniform=uniform)
    mixed = choose_tokens(
        logits,
        temperature=torch.tensor([0.7, 0.0, 0.7]),
        top_k=torch.tensor([0, 3, 0]),
        top_p=torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64),
        uniform=uniform,
    )
    assert mixed[0][[0, 2]].tolist() == alone[0][[0, 2]].tolist()
    assert mixed[1][[0, 2]].tolist() == alone[1][[0, 2]].tolist()


@pytest.mark.parametrize(
    ("params", "prompt", "expected"),
    [
        ({}, 10, 30),  # response_length
        ({}, 35, 15),  # what is left of prompt_length + response_length
        ({"max_tokens": 7}, 10, 7),
        ({"max_new_tokens": 8}, 10, 8),
        ({"max_tokens": 99}, 80, 20),  # what is left of max_model_len
        ({"max_tokens": 0}, 10, 1),
        ({}, 60, 1),
    ],
)
def test_max_tokens_follows_the_rules_of_verls_vllm_server(params, prompt, expected):
    assert parse_sampling_params(params, prompt, CONFIG).max_tokens == expected


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": 0.1}, "min_p"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": -2}, "top_k=-2"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(params, message):
    with pytest.raises(ValueError, match=message):
        parse_sampling_params(params, 10, CONFIG)
