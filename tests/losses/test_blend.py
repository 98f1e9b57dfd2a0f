"""Blends of teachers: against the float64 reference under plain autograd, a case by hand, and blends that are one teacher."""

import math

import pytest
import torch
from tests.losses.chunked_cases import NUM_TOKENS, VOCAB, make_case, relative_error, run
from torch.utils._python_dispatch import TorchDispatchMode

from opd.losses import COMPARISONS, DIVERGENCE_KINDS, Blend, PolicyTerm, blended_divergence, divergence

SHARES = (0.5, 0.3, 0.2)
FORMS = ("mixture", "sum")
KINDS = (*DIVERGENCE_KINDS, *COMPARISONS)


def _teachers(case, num=len(SHARES)):
    """The case's teacher, and others of other widths."""
    made = torch.Generator().manual_seed(9)
    sides = [(case.teacher_hidden, case.teacher_weight)]
    for width in (24, 56)[: num - 1]:
        hidden, weight = torch.randn(NUM_TOKENS, width, generator=made), torch.randn(VOCAB, width, generator=made)
        sides.append((hidden.to(case.teacher_hidden), (width**-0.5 * weight).to(case.teacher_weight)))
    return sides


def _blended(case, teachers, blend, kind, *, temperature=1.0, chunk_size=7, **how):
    output = blended_divergence(
        case.student_hidden, case.student_weight, teachers, blend, kind, token_weights=case.weights, beta=0.3,
        temperature=temperature, chunk_size=chunk_size, token_ids=case.token_ids, top_k=5, **how,
    )  # fmt: skip
    return output


def _reference(case, form, kind, temperature, shares=SHARES):
    """Weighted sum, per-token values and gradients by whole float64 logits, probabilities mixed as probabilities."""
    hidden, weight = (x.detach().double().requires_grad_() for x in case.heads()[:2])
    student = hidden @ weight.T
    teachers = [states.double() @ head.double().T for states, head in _teachers(case)]
    if form == "mixture":
        mixed = sum(share * (logits / temperature).softmax(-1) for share, logits in zip(shares, teachers, strict=True))
        values = divergence(student, mixed.log() * temperature, kind, beta=0.3, temperature=temperature)
    else:
        values = sum(
            share * divergence(student, logits, kind, beta=0.3, temperature=temperature)
            for share, logits in zip(shares, teachers, strict=True)
        )
    loss = (values * case.weights.double()).sum()
    loss.backward()
    return loss.detach(), values.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_fp32_value_and_gradients_agree_with_float64_to_1e_5(form, kind, scale, temperature):
    case = make_case(scale=scale)
    loss, values, grad_hidden, grad_weight = _reference(case, form, kind, temperature)
    ours = _blended(case, _teachers(case), Blend(form=form, shares=SHARES), kind, temperature=temperature)
    ours.loss_sum.backward()
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert relative_error(ours.divergence, values) <= 1e-5
    assert relative_error(case.student_hidden.grad, grad_hidden) <= 1e-5
    assert relative_error(case.student_weight.grad, grad_weight) <= 1e-5


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_float64_inputs_stay_float64(form, kind):
    case = make_case(dtype=torch.float64)
    loss, values, grad_hidden, _ = _reference(case, form, kind, 0.7)
    ours = _blended(case, _teachers(case), Blend(form=form, shares=SHARES), kind, temperature=0.7)
    ours.loss_sum.backward()
    torch.testing.assert_close(ours.loss_sum, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.divergence, values, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(case.student_hidden.grad, grad_hidden, rtol=1e-10, atol=1e-13)


def test_two_tokens_by_hand():
    """A student of (1/2, 1/2), teachers of (3/4, 1/4) and (1/4, 3/4) with shares 3/4 and 1/4: the mixture is (5/8, 3/8)."""
    logits = [torch.tensor([[p, 1 - p]]).double().log() for p in (0.5, 0.75, 0.25)]
    one = torch.eye(2, dtype=torch.float64)

    def found(form, kind):
        hidden = logits[0].clone().requires_grad_()
        output = blended_divergence(
            hidden, one, [(logits[1], one), (logits[2], one)], Blend(form=form, shares=(0.75, 0.25)), kind,
            token_weights=torch.ones(1), beta=0.5, temperature=1.0, chunk_size=1,
        )  # fmt: skip
        output.loss_sum.backward()
        return output.loss_sum.item(), hidden.grad[0].tolist()

    value, gradient = found("mixture", "forward_kl")
    assert value == pytest.approx(5 / 8 * math.log(5 / 4) + 3 / 8 * math.log(3 / 4))
    assert gradient == pytest.approx([0.5 - 5 / 8, 0.5 - 3 / 8])
    value, gradient = found("mixture", "reverse_kl")
    assert value == pytest.approx(0.5 * math.log(4 / 5) + 0.5 * math.log(4 / 3))
    assert gradient == pytest.approx([0.25 * math.log(3 / 5), -0.25 * math.log(3 / 5)])
    value, gradient = found("sum", "forward_kl")  # the same from both teachers; its gradient is the mixture's
    assert value == pytest.approx(3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2))
    assert gradient == pytest.approx([0.5 - 5 / 8, 0.5 - 3 / 8])
    value, gradient = found("sum", "reverse_kl")
    assert value == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2))
    assert gradient == pytest.approx([0.25 * math.log(1 / 3) / 2, -0.25 * math.log(1 / 3) / 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_blend_of_one_teacher_is_that_teacher_to_the_bit(form, kind):
    case, plain = make_case(), make_case()
    ours = _blended(case, _teachers(case, 1), Blend(form=form, shares=(1.0,)), kind)
    alone = run(plain, kind, token_ids=plain.token_ids, top_k=5)
    ours.loss_sum.backward()
    alone.loss_sum.backward()
    assert torch.equal(ours.divergence, alone.divergence)
    assert torch.equal(case.student_hidden.grad, plain.student_hidden.grad)
    assert torch.equal(case.student_weight.grad, plain.student_weight.grad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_equal_teachers_are_one_whatever_their_shares(form, kind):
    case, plain = (make_case(dtype=torch.float64) for _ in range(2))
    same = _teachers(case, 1) * 3
    ours = _blended(case, same, Blend(form=form, shares=SHARES), kind, temperature=0.7)
    alone = run(plain, kind, token_ids=plain.token_ids, top_k=5, temperature=0.7)
    ours.loss_sum.backward()
    alone.loss_sum.backward()
    for name in ("divergence", "student_entropy", "teacher_entropy", "student_log_prob", "teacher_log_prob"):
        torch.testing.assert_close(getattr(ours, name), getattr(alone, name), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(case.student_hidden.grad, plain.student_hidden.grad, rtol=1e-9, atol=1e-12)


def test_the_teachers_entropy_and_log_probability_are_those_of_the_mixture():
    case = make_case(dtype=torch.float64)
    ours = _blended(case, _teachers(case), Blend(form="mixture", shares=SHARES), "jsd", temperature=1.5)
    mixed = sum(
        share * (states @ head.T / 1.5).softmax(-1)
        for share, (states, head) in zip(SHARES, _teachers(case), strict=True)
    )
    expected = torch.distributions.Categorical(probs=mixed)
    torch.testing.assert_close(ours.teacher_entropy, expected.entropy())
    torch.testing.assert_close(ours.teacher_log_prob, expected.log_prob(case.token_ids))


@pytest.mark.parametrize("form", FORMS)
def test_a_policy_gradient_beside_a_blend_is_added_once(form):
    def advantage_times_log_prob(log_probs, old, advantages):
        return -advantages * log_probs, -advantages

    gradients = {}
    for name, with_policy, weighted in (("both", True, 1.0), ("policy", True, 0.0), ("blend", False, 1.0)):
        case = make_case(dtype=torch.float64)
        case = case._replace(weights=case.weights * weighted)
        term = PolicyTerm(
            token_loss=advantage_times_log_prob,
            advantages=torch.linspace(-1, 1, NUM_TOKENS, dtype=torch.float64),
            token_weights=torch.ones(NUM_TOKENS, dtype=torch.float64),
        )
        policy = term if with_policy else None
        output = _blended(case, _teachers(case), Blend(form=form, shares=SHARES), "reverse_kl", policy=policy)
        output.loss_sum.backward()
        gradients[name] = case.student_hidden.grad
    torch.testing.assert_close(gradients["both"], gradients["policy"] + gradients["blend"])


@pytest.mark.parametrize("form", FORMS)
def test_a_teacher_that_rules_out_a_token_leaves_it_to_the_others(form):
    """Logits so far apart that fp32 probabilities are 0; the mixture still has the other teacher's."""
    case = make_case(scale=60.0)
    ours = _blended(case, _teachers(case), Blend(form=form, shares=SHARES), "reverse_kl")
    ours.loss_sum.backward()
    assert not ours.nonfinite.any()
    assert relative_error(ours.divergence, _reference(case, form, "reverse_kl", 1.0)[1]) <= 1e-4
    assert case.student_weight.grad.isfinite().all()


class _Rows(TorchDispatchMode):
    """The numbers of rows of all tensors [., VOCAB] that are made."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dim() == 2 and out.shape[1] == VOCAB:
            self.seen.add(out.shape[0])
        return out


@pytest.mark.parametrize("form", FORMS)
def test_never_more_rows_of_logits_than_a_chunk_exist(form):
    case = make_case()
    with _Rows() as rows:
        _blended(case, _teachers(case), Blend(form=form, shares=SHARES), "jsd", chunk_size=5).loss_sum.backward()
    heads = {weight.shape[1] for weight in (case.student_weight, *(head for _, head in _teachers(case)))}
    assert rows.seen - heads == {5, NUM_TOKENS % 5}


@pytest.mark.parametrize("shares", [(), (0.5, 0.6), (1.5, -0.5), (1.0, 0.0)])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ValueError, match="must be positive and sum to 1"):
        Blend(form="sum", shares=shares)


def test_a_teacher_without_a_share_is_refused():
    case = make_case()
    with pytest.raises(ValueError, match="2 teachers with 3 shares"):
        _blended(case, _teachers(case, 2), Blend(form="sum", shares=SHARES), "jsd")
