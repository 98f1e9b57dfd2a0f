"""The probability of unshared tokens, from a few logits, and the likeliest tokens equal the whole softmax's."""

import pytest
import torch

from opd.losses import HiddenTargets, Loss, Weights, head_loss, unshared_mass
from opd.losses.head import NUM_TOP, top_tokens


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_mass_is_what_the_whole_softmax_puts_there(temperature):
    generator = torch.Generator().manual_seed(3)
    shared, entries, rows, tokens = 50, 54, 64, 1100  # padded rows after the tokenizer's; more tokens than a chunk
    hidden = torch.randn(tokens, 16, generator=generator, dtype=torch.float64)
    weight = torch.randn(rows, 16, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, shared, (tokens,), generator=generator)
    among_shared = torch.log_softmax(hidden @ weight[:shared].T / temperature, dim=-1)
    log_prob = among_shared.gather(1, ids[:, None]).squeeze(1)
    expected = torch.softmax(hidden @ weight[:entries].T / temperature, dim=-1)[:, shared:].sum(dim=-1)
    found = unshared_mass(
        hidden, weight, shared=shared, entries=entries, token_ids=ids, log_prob=log_prob, temperature=temperature
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert found.max() > 0.5 > 1e-3 > found.min()


def test_the_divergences_own_log_probabilities_serve_in_bf16_heads():
    generator = torch.Generator().manual_seed(4)
    shared, entries = 96, 100
    student, teacher = (torch.randn(40, 32, generator=generator, dtype=torch.bfloat16) for _ in range(2))
    heads = [torch.randn(128, 32, generator=generator, dtype=torch.bfloat16) / 4 for _ in range(2)]
    ids = torch.randint(0, shared, (40,), generator=generator)
    targets = HiddenTargets(teacher, heads[1])
    output = head_loss(student, heads[0], ids, Weights(), Loss(), targets=targets, valid_vocab=shared)
    sides = (
        (student, heads[0], output.statistics["log_prob"]),
        (teacher, heads[1], output.statistics["teacher_log_prob"]),
    )
    for hidden, head, log_prob in sides:
        expected = torch.softmax(hidden.double() @ head[:entries].double().T, dim=-1)[:, shared:].sum(dim=-1)
        found = unshared_mass(
            hidden, head, shared=shared, entries=entries, token_ids=ids, log_prob=log_prob, temperature=1.0
        )
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("vocab", [97, 2])
def test_the_likeliest_tokens_are_those_of_the_whole_softmax_and_nothing_is_known_of_tokens_not_shown(vocab):
    generator, shown = torch.Generator().manual_seed(5), torch.arange(130) % 2 == 0
    hidden, weight = (torch.randn(num, 8, generator=generator, dtype=torch.float64) for num in (130, 100))
    found = top_tokens(hidden, weight, shown, vocab=vocab, temperature=0.5)
    values, ids = (hidden @ weight[:vocab].T / 0.5).softmax(-1).topk(num := min(vocab, NUM_TOP))
    torch.testing.assert_close(found[shown, :num], torch.stack([ids.double(), values], -1)[shown])
    assert found[~shown].isnan().all()
    assert found[:, num:].isnan().all()
