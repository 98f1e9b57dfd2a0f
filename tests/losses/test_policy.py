"""A policy gradient beside a divergence in one pass over the logits, against autograd in float64."""

from __future__ import annotations

import pytest
import torch
from tests.losses.chunked_cases import make_case, run

from opd.losses import COMPARISONS, DIVERGENCE_KINDS, PolicyTerm, divergence
from opd.losses.policy import sampled_gradient, token_log_probs

CLIP = 0.2


def _losses(log_probs, old, advantages):
    ratio = (log_probs - old).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP))


def _token_loss(log_probs, old, advantages):
    with torch.enable_grad():
        current = log_probs.detach().requires_grad_()
        losses = _losses(current, old.detach(), advantages)
        return losses.detach(), torch.autograd.grad(losses.sum(), current)[0]


def _term(case, *, old: bool = True) -> PolicyTerm:
    generator = torch.Generator().manual_seed(5)
    num = len(case.token_ids)
    kwargs = {"temperature": 1.3, "valid_vocab": len(case.student_weight), "chunk_size": 50}
    now = token_log_probs(case.student_hidden, case.student_weight, case.token_ids, **kwargs)
    return PolicyTerm(
        token_loss=_token_loss,
        advantages=torch.randn(num, generator=generator).to(now),
        token_weights=torch.rand(num, generator=generator).to(now),
        old_log_probs=now + 0.3 * torch.randn(num, generator=generator).to(now) if old else None,
    )


def _reference(case, kind, term):
    hidden, weight = (x.detach().double().requires_grad_() for x in case.heads()[:2])
    logits = hidden @ weight.T
    values = divergence(
        logits, case.teacher_hidden.double() @ case.teacher_weight.double().T, kind, beta=0.3, temperature=1.3
    )
    log_probs = (logits / 1.3).log_softmax(-1).gather(1, case.token_ids[:, None]).squeeze(1)
    old = log_probs.detach() if term.old_log_probs is None else term.old_log_probs.double()
    losses = _losses(log_probs, old, term.advantages.double())
    loss = (values * case.weights.double()).sum() + (losses * term.token_weights.double()).sum()
    loss.backward()
    return loss.detach(), losses.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
@pytest.mark.parametrize("chunk_size", [1, 7, 50])
@pytest.mark.parametrize("old", [True, False])
def test_one_pass_gives_the_sum_of_both_losses_and_of_both_gradients(kind, chunk_size, old):
    case = make_case(dtype=torch.float64)
    term = _term(case, old=old)
    loss, losses, grad_hidden, grad_weight = _reference(case, kind, term)
    ours = run(case, kind, temperature=1.3, chunk_size=chunk_size, token_ids=case.token_ids, policy=term)
    ours.loss_sum.backward()
    torch.testing.assert_close(ours.loss_sum, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.policy_loss, losses, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(case.student_hidden.grad, grad_hidden, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(case.student_weight.grad, grad_weight, rtol=1e-9, atol=1e-12)


def test_a_clipped_token_has_no_slope_and_the_others_have():
    case = make_case(dtype=torch.float64)
    term = _term(case)
    ours = run(case, "reverse_kl", temperature=1.3, token_ids=case.token_ids, policy=term)
    ratio = (ours.student_log_prob - term.old_log_probs).exp()
    clipped = ((ratio > 1 + CLIP) & (term.advantages > 0)) | ((ratio < 1 - CLIP) & (term.advantages < 0))
    assert 0 < clipped.sum() < len(clipped)
    assert torch.equal(ours.policy_slope == 0, clipped)


def test_a_policy_of_weight_0_leaves_the_divergence_as_it_is_to_the_bit():
    cases = [make_case() for _ in range(2)]
    term = _term(cases[0])
    still = PolicyTerm(
        token_loss=_token_loss, advantages=term.advantages, token_weights=torch.zeros_like(term.token_weights)
    )
    for case, policy in zip(cases, (None, still), strict=True):
        run(case, "reverse_kl", token_ids=case.token_ids, policy=policy).loss_sum.backward()
    assert torch.equal(cases[0].student_weight.grad, cases[1].student_weight.grad)
    assert torch.equal(cases[0].student_hidden.grad, cases[1].student_hidden.grad)


def test_a_sure_tokens_gradient_keeps_its_digits_in_fp32():
    logits = torch.zeros(1, 9)
    logits[0, 4] = 25.0  # p = 1 - 1.1e-10, which fp32 rounds to 1
    case = make_case(num_tokens=1, student_vocab=9, teacher_vocab=9)
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = logits.T.clone().requires_grad_()
    term = PolicyTerm(token_loss=lambda now, old, a: (-a, -a), advantages=torch.ones(1), token_weights=torch.ones(1))
    heads = case._replace(
        student_hidden=hidden, student_weight=weight, teacher_hidden=hidden.detach(), teacher_weight=weight.detach()
    )
    run(heads, "forward_kl", token_ids=torch.tensor([4]), policy=term).loss_sum.backward()
    exact = -(1 - logits.double().softmax(-1)[0, 4])
    assert weight.grad[4].item() == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.parametrize("top_k", [1, 3, 36, 37, 50])
def test_the_teachers_top_k_with_the_tail_as_one_event(top_k):
    case = make_case(num_tokens=11, student_vocab=37, teacher_vocab=37, dtype=torch.float64)
    ours = run(case, "topk_reverse_kl", temperature=1.3, top_k=top_k)
    ours.loss_sum.backward()
    hidden, weight = (x.detach().requires_grad_() for x in case.heads()[:2])
    p = (hidden @ weight.T / 1.3).softmax(-1)
    q = (case.teacher_hidden @ case.teacher_weight.T / 1.3).softmax(-1)
    value = torch.zeros(11, dtype=torch.float64)
    for row in range(11):
        top = q[row].argsort(descending=True)[:top_k].tolist()
        events = [[v] for v in top] + [[v for v in range(37) if v not in top]] * (top_k < 37)
        for event in events:
            mass, wanted = p[row, event].sum(), q[row, event].sum()
            value[row] = value[row] + mass * (mass / wanted).log()
    (value * case.weights.double()).sum().backward()
    torch.testing.assert_close(ours.divergence, value.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(case.student_hidden.grad, hidden.grad, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(case.student_weight.grad, weight.grad, rtol=1e-8, atol=1e-12)


def test_the_sampled_gradient_is_the_exact_one_in_the_mean_over_the_students_own_draws():
    base = make_case(num_tokens=1, student_vocab=23, teacher_vocab=23, dtype=torch.float64)
    p = (base.student_hidden @ base.student_weight.T).softmax(-1).detach()[0]
    total, value = torch.zeros_like(base.student_weight), 0.0
    for token in range(23):
        case = make_case(num_tokens=1, student_vocab=23, teacher_vocab=23, dtype=torch.float64)
        ours = run(case, "sampled_reverse_kl", token_ids=torch.tensor([token]))
        ours.loss_sum.backward()
        total += p[token] * case.student_weight.grad
        value += p[token] * ours.divergence[0]
    exact = run(base, "reverse_kl")
    exact.loss_sum.backward()
    torch.testing.assert_close(total, base.student_weight.grad, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(value, exact.divergence[0])


def test_a_sampled_tokens_gradient_is_the_policy_gradient_of_its_log_ratio_less_the_mean():
    case = make_case(num_tokens=5, student_vocab=23, teacher_vocab=23, dtype=torch.float64)
    run(case, "sampled_reverse_kl", token_ids=case.token_ids).loss_sum.backward()
    hidden, weight = (x.detach().requires_grad_() for x in case.heads()[:2])
    log_s = (hidden @ weight.T).log_softmax(-1)
    log_t = (case.teacher_hidden @ case.teacher_weight.T).log_softmax(-1)
    own = log_s.gather(1, case.token_ids[:, None]).squeeze(1)
    cost = own - log_t.gather(1, case.token_ids[:, None]).squeeze(1) - (log_s.exp() * (log_s - log_t)).sum(-1)
    (cost.detach() * own * case.weights.double()).sum().backward()
    torch.testing.assert_close(case.student_weight.grad, weight.grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("kind", COMPARISONS)
def test_comparisons_make_rows_that_sum_to_zero_and_no_nan_where_the_teacher_rules_tokens_out(kind):
    case = make_case(num_tokens=4, student_vocab=9, teacher_vocab=9)
    with torch.no_grad():
        case.teacher_weight[3] = 1e4
    ours = run(case, kind, token_ids=case.token_ids, top_k=2)
    ours.loss_sum.backward()
    assert case.student_weight.grad.isfinite().all()
    assert case.student_weight.grad.sum(0).norm() < 1e-5 * case.student_weight.grad.norm()


def test_what_a_loss_lacks_is_named():
    case = make_case(num_tokens=4, student_vocab=9, teacher_vocab=9)
    with pytest.raises(ValueError, match="top_k=0 with kind='topk_reverse_kl'"):
        run(case, "topk_reverse_kl")
    with pytest.raises(ValueError, match="token_ids=None with kind='sampled_reverse_kl'"):
        run(case, "sampled_reverse_kl")
    with pytest.raises(ValueError, match="token_ids=None with a policy gradient"):
        run(case, "reverse_kl", policy=_term(case))


def test_a_token_that_does_not_count_has_no_gradient_of_its_own():
    p = torch.rand(2, 5).softmax(-1)
    gradient = sampled_gradient(p, torch.tensor([-1, 9]), torch.ones(2))
    assert torch.equal(gradient, torch.zeros(2, 5))
