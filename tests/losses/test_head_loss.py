"""`head_loss` against plain formulas in float64, and its contract: who gets a gradient, in which dtype, what is kept."""

import pytest
import torch
from tests.losses.cases import KINDS, TOKENS, VOCAB, WIDTHS, clipped, draw, error, expected, make, run
from torch.utils._python_dispatch import TorchDispatchMode

from opd.losses import EventTargets, HiddenTargets, Loss, Weights, head_loss, token_log_probs

ALL = ("entropy", "teacher_entropy")
POLICY = {"advantages": draw(TOKENS, 5) - 0.5, "old_log_probs": -6 + draw(TOKENS, 6)}


def weights_of(names) -> Weights:
    return Weights(**{name: draw(TOKENS, 10 + place) for place, name in enumerate(names)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 50])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_all_terms_of_every_kind_are_the_plain_formulas(kind, chunk, temperature):
    case, weights = make(scale=2.0), weights_of(("divergence", "policy", "nll", "entropy"))
    exact = expected(case, kind, weights, temperature=temperature, **POLICY)
    ours = run(case, kind, weights, temperature=temperature, chunk=chunk, watch=ALL, **POLICY)
    ours.loss.backward()
    torch.testing.assert_close(ours.loss, exact.loss, rtol=1e-12, atol=0)
    for name, values in exact.statistics.items():
        torch.testing.assert_close(ours.statistics[name], values, rtol=1e-10, atol=1e-13, msg=name)
    assert [error(*pair) < 1e-12 for pair in zip(case.grad(), exact.grad, strict=True)] == [True, True]


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_a_student_next_to_its_teacher_keeps_its_digits_in_fp32(kind):
    case = make(dtype=torch.float32)
    near = case.weight.detach() + 1e-3 * draw(VOCAB * WIDTHS[0], 3).view(VOCAB, -1).float()
    case = case._replace(targets=HiddenTargets(case.hidden.detach(), near))
    exact = expected(case, kind)
    ours = run(case, kind)
    ours.loss.backward()
    assert exact.statistics["divergence"].mean() < 1e-4
    assert error(ours.statistics["divergence"], exact.statistics["divergence"]) <= 1e-3
    assert [error(*pair) <= 1e-3 for pair in zip(case.grad(), exact.grad, strict=True)] == [True, True]


def test_slopes_of_a_first_pass_give_the_gradient_of_the_policy_loss():
    case, twin, weights = make(), make(), draw(TOKENS, 2)
    run(case, weights=Weights(policy=weights), targets=None, **POLICY).loss.backward()
    log_p = token_log_probs(twin.hidden, twin.weight, twin.ids, valid_vocab=VOCAB).requires_grad_()
    (weights * clipped(log_p, POLICY["old_log_probs"], POLICY["advantages"])).sum().backward()
    ours = run(twin, weights=Weights(), targets=None, slopes=log_p.grad)
    ours.loss.backward()
    assert ours.loss == 0
    assert [error(*pair) < 1e-12 for pair in zip(twin.grad(), case.grad(), strict=True)] == [True, True]


def test_without_old_log_probs_every_ratio_is_one():
    case = make()
    ours = run(case, weights=Weights(policy=draw(TOKENS, 2)), targets=None, advantages=POLICY["advantages"])
    torch.testing.assert_close(ours.statistics["policy_loss"], -POLICY["advantages"])


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd", "sampled_reverse_kl"])
def test_events_of_a_served_teacher_equal_those_of_its_hidden_states(kind):
    case, twin = make(), make()
    weights, is_sampled = weights_of(("divergence", "nll")), kind == "sampled_reverse_kl"
    params = {"baseline": 0} if is_sampled else KINDS[kind]  # the token alone has no baseline
    log_t = (case.targets.hidden @ case.targets.weight.T).log_softmax(-1)
    events = case.ids[:, None] if is_sampled else log_t.topk(9).indices
    loss = Loss(kind, params if is_sampled else params | {"top_k": 9})
    found = [
        head_loss(case.hidden, case.weight, case.ids, weights, loss, targets=case.targets, chunk=7),
        head_loss(
            twin.hidden, twin.weight, twin.ids, weights, Loss(kind, params), chunk=5,
            targets=EventTargets(events, log_t.gather(1, events)),
        ),
    ]  # fmt: skip
    for each in found:
        each.loss.backward()
    torch.testing.assert_close(found[0].statistics["divergence"], found[1].statistics["divergence"])
    assert [error(*pair) < 1e-10 for pair in zip(twin.grad(), case.grad(), strict=True)] == [True, True]


@pytest.mark.parametrize("rows", [(384, 352), (352, 384), (333, 352)])
@pytest.mark.parametrize("kind", KINDS)
def test_padded_entries_take_no_part_and_are_never_read(kind, rows):
    case = make(rows=rows)
    exact = expected(case, kind)
    with torch.no_grad():
        case.weight[VOCAB:], case.targets.weight[VOCAB:] = torch.nan, torch.inf
    ours = run(case, kind)
    ours.loss.backward()
    torch.testing.assert_close(ours.loss, exact.loss, rtol=1e-12, atol=0)
    assert error(case.grad()[0], exact.grad[0]) < 1e-12
    assert error(case.grad()[1][:VOCAB], exact.grad[1][:VOCAB]) < 1e-12
    assert case.grad()[1][VOCAB:].count_nonzero() == 0


def test_a_token_outside_the_vocabulary_has_log_probability_minus_infinity_and_no_gradient():
    case = make(tokens=3)
    case.ids[:] = torch.tensor([0, VOCAB, -100])
    ours = run(case, weights=Weights(nll=torch.ones(3)))
    ours.loss.backward()
    assert ours.statistics["log_prob"].isfinite().tolist() == [True, False, False]
    assert ours.statistics["teacher_log_prob"][1:].tolist() == [-torch.inf, -torch.inf]
    assert case.grad()[0].any(1).tolist() == [True, False, False]
    assert not ours.statistics["nonfinite"].any()


def test_a_row_that_is_not_finite_is_reported():
    case = make()
    with torch.no_grad():
        case.hidden[3] = torch.nan
    assert run(case).statistics["nonfinite"].nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens_still_run_a_backward_that_gives_zero_gradients(kind):
    # Otherwise the collectives of other ranks would wait for this one.
    case = make(tokens=0)
    backbone = torch.nn.Linear(WIDTHS[0], WIDTHS[0], dtype=torch.float64)
    ours = run(case._replace(hidden=backbone(case.hidden)), kind, Weights(divergence=torch.ones(0)))
    ours.loss.backward()
    assert (ours.loss.item(), case.weight.grad.count_nonzero(), backbone.weight.grad.count_nonzero()) == (0, 0, 0)
    assert ours.statistics["divergence"].shape == ours.statistics["log_prob"].shape == (0,)


def test_the_backward_scales_the_gradient_and_runs_once():
    case, same = make(), make()
    loss = run(case).loss * 0.25
    loss.backward(retain_graph=True)
    run(same).loss.backward()
    torch.testing.assert_close(case.grad()[1], same.grad()[1] * 0.25)
    with pytest.raises(RuntimeError, match="call it again"):
        loss.backward()


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_side_gets_no_gradient_and_the_other_is_unchanged(frozen):
    both, one = make(), make()
    getattr(one, frozen).requires_grad_(False)
    run(both).loss.backward()
    run(one).loss.backward()
    trained = "weight" if frozen == "hidden" else "hidden"
    assert getattr(one, frozen).grad is None
    assert torch.equal(getattr(one, trained).grad, getattr(both, trained).grad)


def test_without_grad_mode_the_values_are_the_same_and_no_graph_is_made():
    case = make()
    with torch.no_grad():
        ours = run(case)
    assert not ours.loss.requires_grad
    assert torch.equal(ours.loss, run(case).loss.detach())


def test_the_teacher_receives_no_gradient():
    case = make()
    for each in case.targets:
        each.requires_grad_()
    run(case, "jsd").loss.backward()
    assert [each.grad for each in case.targets] == [None, None]


def test_16_bit_inputs_are_computed_in_fp32_and_only_their_gradients_are_rounded():
    case = make(dtype=torch.bfloat16)
    exact = expected(case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = run(case)
    ours.loss.backward()
    assert error(ours.loss, exact.loss) <= 1e-5
    assert [each.dtype for each in case.grad()] == [torch.bfloat16] * 2
    # One rounding to 8 significant bits: at most 2^-9 relative of each entry.
    assert [error(*pair) <= 2**-9 for pair in zip(case.grad(), exact.grad, strict=True)] == [True, True]


class Tensors(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves(result)
        self.largest = max([self.largest, *(each.numel() for each in leaves if isinstance(each, torch.Tensor))])
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_of_tokens_times_vocabulary_is_ever_made(kind):
    case = make(tokens=256)
    with Tensors() as seen:
        run(case, kind, chunk=16).loss.backward()
    assert seen.largest <= max(16 * 384, 384 * max(WIDTHS))


REFUSED = {
    "another length of ids": ({"ids": torch.zeros(4, dtype=torch.int64)}, "same length T"),
    "another length of slopes": ({"slopes": torch.zeros(4)}, "slopes"),
    "unequal heads": ({"valid_vocab": None}, "valid_vocab=None with heads"),
    "too many entries": ({"valid_vocab": 1000}, "valid_vocab=1000"),
    "no targets": ({"targets": None}, "give HiddenTargets or EventTargets"),
    "no advantages": ({"weights": Weights(policy=torch.ones(TOKENS))}, "give Loss.policy and advantages"),
    "no chunk": ({"chunk": 0}, "chunk=0"),
    "top_k with events": (
        {
            "targets": EventTargets(torch.zeros(TOKENS, 9).long(), torch.zeros(TOKENS, 9)),
            "loss": Loss("reverse_kl", {"top_k": 9}),
        },
        "top_k=9 with EventTargets",
    ),
    "an unknown statistic": ({"watch": ("variance",)}, "entropy, teacher_entropy"),
    "a backend that cannot run": (
        {"backend": "fused", "weights": Weights(nll=torch.ones(TOKENS))},
        "leave backend unset",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_undefined_call_is_refused_by_name(name):
    changes, message = REFUSED[name]
    case = make(rows=(352, 384))
    arguments = {"ids": case.ids, "weights": Weights(divergence=torch.ones(TOKENS)), "targets": case.targets}
    arguments |= {"valid_vocab": VOCAB, "loss": Loss(policy=clipped), **changes}
    with pytest.raises(ValueError, match=message):
        head_loss(case.hidden, case.weight, **arguments)
