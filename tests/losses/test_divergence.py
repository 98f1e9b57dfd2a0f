"""The reference divergence: against torch.distributions, at the edges of floating point, and its errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from opd.losses import DIVERGENCE_KINDS, divergence

EXACT = settings(max_examples=40, deadline=None, derandomize=True)


def logits(tokens, vocab, seed, scale=2.0):
    return scale * torch.randn(tokens, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def independent(student, teacher, kind, beta):
    """The same quantity through torch.distributions, which shares no line with ours."""
    p_s, p_t = Categorical(logits=student), Categorical(logits=teacher)
    if kind == "reverse_kl":
        return kl_divergence(p_s, p_t)
    if kind == "forward_kl":
        return kl_divergence(p_t, p_s)
    mixture = Categorical(probs=beta * p_t.probs + (1 - beta) * p_s.probs)
    return beta * kl_divergence(p_t, mixture) + (1 - beta) * kl_divergence(p_s, mixture)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_each_kind_agrees_with_torch_distributions(kind, beta, temperature):
    student, teacher = logits(41, 127, seed=0), logits(41, 127, seed=1)
    ours = divergence(student, teacher, kind, beta=beta, temperature=temperature)
    expected = independent(student / temperature, teacher / temperature, kind, beta)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_its_autograd_gradient_agrees_with_finite_differences(kind):
    student, teacher = logits(3, 7, seed=2).requires_grad_(), logits(3, 7, seed=3)
    assert torch.autograd.gradcheck(lambda z: divergence(z, teacher, kind, beta=0.3, temperature=1.7), student)


def test_two_outcomes_by_hand():
    # p_S = (3/4, 1/4), p_T = (1/4, 3/4): both KLs are 1/2 log 3; with beta = 1/2 the mixture is uniform.
    student, teacher = torch.tensor([[3.0, 1.0]]).log(), torch.tensor([[1.0, 3.0]]).log()
    half_log_3 = 0.5 * math.log(3)
    to_uniform = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert divergence(student, teacher, "reverse_kl").item() == pytest.approx(half_log_3, rel=1e-6)
    assert divergence(student, teacher, "forward_kl").item() == pytest.approx(half_log_3, rel=1e-6)
    assert divergence(student, teacher, "jsd", beta=0.5).item() == pytest.approx(to_uniform, rel=1e-6)


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_teacher_equal_to_student_is_exactly_zero(kind):
    same = logits(5, 33, seed=4).float()
    value = divergence(same, same.clone(), kind, beta=0.5)
    # The mixture of two equal distributions is rounded once: jsd is zero to the last bit of its terms.
    assert value.abs().max().item() <= (3e-7 if kind == "jsd" else 0.0)


@EXACT
@given(seed=st.integers(0, 2**16), vocab=st.integers(2, 60), scale=st.floats(0.01, 20.0), beta=st.floats(0.05, 0.95))
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_no_divergence_is_negative_and_jsd_is_at_most_log_2(kind, seed, vocab, scale, beta):
    value = divergence(logits(4, vocab, seed, scale), logits(4, vocab, seed + 1, scale), kind, beta=beta)
    assert value.min().item() >= -1e-12
    if kind == "jsd":
        # H(beta) = -beta log beta - (1 - beta) log(1 - beta) bounds it, with equality on disjoint support.
        assert value.max().item() <= -beta * math.log(beta) - (1 - beta) * math.log(1 - beta) + 1e-12


@EXACT
@given(seed=st.integers(0, 2**16), vocab=st.integers(2, 60))
def test_jsd_at_one_half_is_symmetric_and_swaps_sides_with_beta(seed, vocab):
    a, b = logits(4, vocab, seed), logits(4, vocab, seed + 1)
    torch.testing.assert_close(
        divergence(a, b, "jsd", beta=0.5), divergence(b, a, "jsd", beta=0.5), rtol=1e-9, atol=1e-13
    )
    swapped = divergence(b, a, "jsd", beta=0.8)
    torch.testing.assert_close(divergence(a, b, "jsd", beta=0.2), swapped, rtol=1e-9, atol=1e-13)


@EXACT
@given(seed=st.integers(0, 2**16), shift=st.floats(-50.0, 50.0))
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_a_constant_added_to_the_logits_changes_nothing(kind, seed, shift):
    a, b = logits(4, 20, seed), logits(4, 20, seed + 1)
    shifted, plain = (divergence(x, b, kind, beta=0.5) for x in (a + shift, a))
    torch.testing.assert_close(shifted, plain, rtol=1e-8, atol=1e-12)


def test_temperature_divides_both_logits_without_a_squared_factor():
    a, b = logits(4, 20, seed=5), logits(4, 20, seed=6)
    torch.testing.assert_close(divergence(a, b, "reverse_kl", temperature=2.0), divergence(a / 2, b / 2, "reverse_kl"))


EXTREMES = {
    "huge": torch.tensor([[3e4, -3e4, 0.0, 1e4]]),
    "near the end of fp32": torch.tensor([[3e38, -3e38, 0.0, 1.0]]),
    "one-hot": torch.tensor([[0.0, 1e4, 0.0, 0.0]]),
    "one-hot by -inf": torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]]),
    "flat": torch.zeros(1, 4),
}


@pytest.mark.parametrize("teacher", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("student", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_value_and_gradient_stay_finite_at_the_extremes(kind, student, teacher):
    student = student.clone().requires_grad_()
    value = divergence(student, teacher, kind, beta=0.5)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize(
    ("given", "computed"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_half_precision_is_computed_in_float32_and_float64_is_kept(given, computed):
    value = divergence(logits(2, 9, seed=7).to(given), logits(2, 9, seed=8).to(given), "reverse_kl")
    assert value.dtype == computed


def test_the_teacher_receives_no_gradient():
    teacher = logits(2, 9, seed=8).requires_grad_()
    student = logits(2, 9, seed=9).requires_grad_()
    divergence(student, teacher, "jsd", beta=0.5).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, float("nan")])
def test_jsd_refuses_a_beta_that_makes_it_one_sided(beta):
    with pytest.raises(ValueError, match="0 < beta < 1"):
        divergence(torch.zeros(1, 2), torch.zeros(1, 2), "jsd", beta=beta)


def test_beta_is_ignored_by_the_one_sided_kinds():
    a, b = logits(2, 9, seed=8), logits(2, 9, seed=9)
    torch.testing.assert_close(divergence(a, b, "reverse_kl", beta=0.0), divergence(a, b, "reverse_kl"))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        divergence(torch.zeros(1, 2), torch.zeros(1, 2), "reverse_kl", temperature=temperature)


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(ValueError, match="reverse_kl, forward_kl, jsd"):
        divergence(torch.zeros(1, 2), torch.zeros(1, 2), "kl")


def test_unequal_vocabularies_are_refused_rather_than_filled():
    with pytest.raises(ValueError, match="same shape"):
        divergence(torch.zeros(1, 3), torch.zeros(1, 2), "reverse_kl")
