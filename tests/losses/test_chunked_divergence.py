"""The chunked hidden-state form: against the float64 reference under plain autograd, and its contract at the edges."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from opd.losses import DIVERGENCE_KINDS, chunked_divergence, divergence

NUM_TOKENS, VOCAB, STUDENT_DIM, TEACHER_DIM = 41, 1271, 24, 40


class Case(NamedTuple):
    student_hidden: Tensor
    student_weight: Tensor
    teacher_hidden: Tensor
    teacher_weight: Tensor
    weights: Tensor
    token_ids: Tensor

    def heads(self):
        return self.student_hidden, self.student_weight, self.teacher_hidden, self.teacher_weight


def make_case(num_tokens=NUM_TOKENS, student_vocab=VOCAB, teacher_vocab=VOCAB, scale=1.0, dtype=torch.float32, seed=0):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, min(student_vocab, teacher_vocab), (num_tokens,), generator=generator)
    return Case(
        (scale * normal(num_tokens, STUDENT_DIM)).to(dtype).requires_grad_(),
        (STUDENT_DIM**-0.5 * normal(student_vocab, STUDENT_DIM)).to(dtype).requires_grad_(),
        (scale * normal(num_tokens, TEACHER_DIM)).to(dtype),
        (TEACHER_DIM**-0.5 * normal(teacher_vocab, TEACHER_DIM)).to(dtype),
        torch.rand(num_tokens, generator=generator),
        ids,
    )


def run(case, kind, *, beta=0.3, temperature=1.0, chunk_size=7, **options):
    return chunked_divergence(
        *case.heads(),
        kind,
        token_weights=case.weights,
        beta=beta,
        temperature=temperature,
        chunk_size=chunk_size,
        **options,
    )


def reference(case, kind, *, beta=0.3, temperature=1.0, vocab=None):
    """Weighted sum, per-token values and both gradients of the naive loss: float64 logits, autograd."""
    hidden, weight = (x.detach().double().requires_grad_() for x in case.heads()[:2])
    teacher_logits = case.teacher_hidden.double() @ case.teacher_weight[:vocab].double().T
    values = divergence(hidden @ weight[:vocab].T, teacher_logits, kind, beta=beta, temperature=temperature)
    loss = (values * case.weights.double()).sum()
    loss.backward()
    return loss.detach(), values.detach(), hidden.grad, weight.grad


def relative_error(ours, expected):
    return ((ours.detach().double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_fp32_value_and_gradients_agree_with_float64_to_1e_5(kind, scale, temperature):
    case = make_case(scale=scale)
    loss, values, grad_hidden, grad_weight = reference(case, kind, temperature=temperature)
    ours = run(case, kind, temperature=temperature)
    ours.loss_sum.backward()
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert relative_error(ours.divergence, values) <= 1e-5
    assert relative_error(case.student_hidden.grad, grad_hidden) <= 1e-5
    assert relative_error(case.student_weight.grad, grad_weight) <= 1e-5


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_float64_inputs_stay_float64(kind):
    case = make_case(dtype=torch.float64)
    loss, values, grad_hidden, grad_weight = reference(case, kind)
    ours = run(case, kind)
    ours.loss_sum.backward()
    torch.testing.assert_close(ours.loss_sum, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.divergence, values, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(case.student_hidden.grad, grad_hidden, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(case.student_weight.grad, grad_weight, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("chunk_size", range(1, 14))
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_every_chunk_size_from_one_to_beyond_the_tokens_gives_the_same(kind, chunk_size):
    case = make_case(num_tokens=11, student_vocab=37, teacher_vocab=37)
    loss, _, grad_hidden, grad_weight = reference(case, kind)
    ours = run(case, kind, chunk_size=chunk_size)
    ours.loss_sum.backward()
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert relative_error(case.student_hidden.grad, grad_hidden) <= 1e-5
    assert relative_error(case.student_weight.grad, grad_weight) <= 1e-5


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_per_token_outputs_are_entropies_and_log_probabilities_of_the_tempered_distributions(kind):
    case = make_case()
    ours = run(case, kind, temperature=1.5, token_ids=case.token_ids)
    for hidden, weight, entropy, log_prob in (
        (*case.heads()[:2], ours.student_entropy, ours.student_log_prob),
        (*case.heads()[2:], ours.teacher_entropy, ours.teacher_log_prob),
    ):
        tempered = torch.distributions.Categorical(logits=hidden.detach().double() @ weight.detach().double().T / 1.5)
        torch.testing.assert_close(entropy.double(), tempered.entropy(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(log_prob.double(), tempered.log_prob(case.token_ids), rtol=1e-5, atol=1e-6)


def test_without_token_ids_there_are_no_log_probabilities_and_only_the_loss_has_a_graph():
    ours = run(make_case(), "reverse_kl")
    assert ours.student_log_prob is None
    assert ours.teacher_log_prob is None
    assert ours.loss_sum.requires_grad
    assert not any(x.requires_grad for x in (ours.divergence, ours.student_entropy, ours.teacher_entropy))


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_all_rows_masked_is_a_zero_loss_with_zero_gradients_and_full_statistics(kind):
    case = make_case()._replace(weights=torch.zeros(NUM_TOKENS))
    ours = run(case, kind)
    ours.loss_sum.backward()
    assert ours.loss_sum.item() == 0.0
    assert case.student_hidden.grad.abs().max().item() == 0.0
    assert case.student_weight.grad.abs().max().item() == 0.0
    assert relative_error(ours.divergence, reference(case, kind)[1]) <= 1e-5


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_masked_tokens_add_nothing(kind):
    case = make_case()
    masked = case._replace(weights=case.weights * (torch.arange(NUM_TOKENS) % 3 == 0))
    kept = torch.arange(0, NUM_TOKENS, 3)
    ours = run(masked, kind)
    ours.loss_sum.backward()
    alone = Case(
        case.student_hidden.detach()[kept].requires_grad_(),
        case.student_weight.detach().clone().requires_grad_(),
        case.teacher_hidden[kept],
        case.teacher_weight,
        case.weights[kept],
        case.token_ids[kept],
    )
    expected = run(alone, kind)
    expected.loss_sum.backward()
    torch.testing.assert_close(ours.loss_sum, expected.loss_sum)
    torch.testing.assert_close(case.student_weight.grad, alone.student_weight.grad, rtol=1e-5, atol=1e-6)
    assert case.student_hidden.grad[masked.weights == 0].abs().max().item() == 0.0


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_teacher_equal_to_student_gives_no_loss_and_no_gradient(kind):
    case = make_case()
    same = case._replace(teacher_hidden=case.student_hidden.detach(), teacher_weight=case.student_weight.detach())
    ours = run(same, kind)
    ours.loss_sum.backward()
    assert ours.loss_sum.abs().item() <= 1e-5
    assert case.student_hidden.grad.abs().max().item() <= 1e-6
    assert case.student_weight.grad.abs().max().item() <= 1e-6


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_a_small_divergence_keeps_its_digits(kind):
    # Late in a run the two sides differ by a few percent. sum p (log p - log q) in fp32 is then off by about 1e-7 of a
    # value of 1e-4; what is left here is the rounding of the two logits themselves.
    case = make_case()
    nudge = 0.01 * torch.randn(case.student_hidden.shape, generator=torch.Generator().manual_seed(1))
    close = case._replace(
        teacher_hidden=(case.student_hidden + nudge).detach(), teacher_weight=case.student_weight.detach()
    )
    loss, values, _, _ = reference(close, kind)
    ours = run(close, kind)
    assert loss.item() / NUM_TOKENS < 1e-4
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert relative_error(ours.divergence, values) <= 3e-5


def extreme_case(student_row, teacher_row):
    """Heads that are identities, so that the hidden states are the logits."""
    student, teacher = torch.tensor([student_row]), torch.tensor([teacher_row])
    eye = torch.eye(len(student_row))
    return Case(student.requires_grad_(), eye.clone().requires_grad_(), teacher, eye, torch.ones(1), torch.tensor([0]))


EXTREMES = {
    "one-hot": [1e4, 0.0, 0.0],
    "other one-hot": [0.0, 0.0, 1e4],
    "huge": [3e4, -3e4, 1e4],
    "near the end of fp32": [3e38, -3e38, 0.0],
    "flat": [0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("teacher", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("student", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize(
    ("kind", "beta"), [("reverse_kl", 0.5), ("forward_kl", 0.5), ("jsd", 0.5), ("jsd", 1e-9), ("jsd", 1 - 1e-9)]
)
def test_one_hot_and_huge_logits_stay_finite(kind, beta, student, teacher):
    case = extreme_case(student, teacher)
    ours = run(case, kind, beta=beta, token_ids=case.token_ids)
    ours.loss_sum.backward()
    assert all(torch.isfinite(x).all() for x in ours)
    assert torch.isfinite(case.student_hidden.grad).all()


@pytest.mark.parametrize(
    ("student_row", "teacher_row"),
    [([14.0, 0.0, 0.0, 1.0], [0.0, 0.0, 13.0, 1.0]), ([14.0, 0.0, 0.0, 1.0], [13.0, 0.5, 0.0, 1.0])],
    ids=["sure of different tokens", "sure of the same token"],
)
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_one_hot_logits_agree_with_float64(kind, student_row, teacher_row):
    # Gaps of 14 nats: 1 - p is 1e-6, ten roundings of fp32, and the gradient at the peak is of that size. (At 30 nats
    # the naive float64 reference itself is wrong in the fourth digit.)
    case = extreme_case(student_row, teacher_row)
    loss, _, grad_hidden, grad_weight = reference(case, kind)
    ours = run(case, kind)
    ours.loss_sum.backward()
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert relative_error(case.student_hidden.grad, grad_hidden) <= 1e-5
    assert relative_error(case.student_weight.grad, grad_weight) <= 1e-5


@pytest.mark.parametrize(("student_vocab", "teacher_vocab"), [(1280, 1344), (1344, 1280), (1271, 1280), (1280, 1280)])
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_padded_vocabulary_entries_count_on_neither_side(kind, student_vocab, teacher_vocab):
    # Defect 12: the original subtracts [N, 151936] from [N, 152064] and fails; filling the gap with zero logits would
    # give each missing entry the probability exp(0) / Z, and equal paddings would be distilled as if they were tokens.
    case = make_case(student_vocab=student_vocab, teacher_vocab=teacher_vocab)
    loss, values, grad_hidden, grad_weight = reference(case, kind, vocab=VOCAB)
    ours = run(case, kind, valid_vocab=VOCAB)
    ours.loss_sum.backward()
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert relative_error(ours.divergence, values) <= 1e-5
    assert relative_error(case.student_hidden.grad, grad_hidden) <= 1e-5
    assert relative_error(case.student_weight.grad, grad_weight) <= 1e-5
    assert case.student_weight.grad[VOCAB:].count_nonzero().item() == 0


def test_what_lies_in_the_padded_entries_does_not_matter():
    case = make_case(student_vocab=1280, teacher_vocab=1344)
    before = run(case, "jsd", valid_vocab=VOCAB)
    with torch.no_grad():
        case.student_weight[VOCAB:] = torch.nan
        case.teacher_weight[VOCAB:] = torch.inf
    torch.testing.assert_close(run(case, "jsd", valid_vocab=VOCAB), before, rtol=0, atol=0)


def test_unequal_vocabularies_without_valid_vocab_are_refused():
    with pytest.raises(ValueError, match="need valid_vocab"):
        run(make_case(student_vocab=1280, teacher_vocab=1344), "reverse_kl")


@pytest.mark.parametrize("valid_vocab", [0, -1, 1272])
def test_valid_vocab_must_fit_both_heads(valid_vocab):
    with pytest.raises(ValueError, match="valid_vocab"):
        run(make_case(teacher_vocab=1280), "reverse_kl", valid_vocab=valid_vocab)


def test_a_token_outside_the_counted_vocabulary_has_log_probability_minus_infinity():
    case = make_case(num_tokens=3, student_vocab=40, teacher_vocab=48)
    ours = run(case, "reverse_kl", valid_vocab=30, token_ids=torch.tensor([29, 30, 45]))
    assert torch.isfinite(ours.student_log_prob).tolist() == [True, False, False]
    assert ours.teacher_log_prob[1:].tolist() == [-torch.inf, -torch.inf]
    assert torch.isfinite(ours.loss_sum)


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_no_tokens_still_run_a_backward_that_gives_zero_gradients(kind):
    # Defect 4: the original skips an empty micro-batch on one rank only, so the other ranks' collectives wait for ever.
    # Here the graph reaches hidden states and head, and whatever lies before them runs its backward.
    case = make_case(num_tokens=0)
    trunk = torch.nn.Linear(STUDENT_DIM, STUDENT_DIM)
    output = run(case._replace(student_hidden=trunk(case.student_hidden)), kind, token_ids=case.token_ids)
    output.loss_sum.backward()
    assert output.loss_sum.item() == 0.0
    assert trunk.weight.grad.count_nonzero().item() == 0
    assert case.student_weight.grad.shape == case.student_weight.shape
    assert case.student_weight.grad.count_nonzero().item() == 0
    assert output.divergence.shape == output.student_log_prob.shape == (0,)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), vocab=st.integers(2, 50), scale=st.floats(0.1, 20.0))
@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_logit_gradients_sum_to_zero_over_the_vocabulary(kind, seed, vocab, scale):
    # dW = g^T h, so its sum over the vocabulary is h^T (row sums of g) = 0: no step moves all logits together.
    case = make_case(
        num_tokens=6, student_vocab=vocab, teacher_vocab=vocab, scale=scale, dtype=torch.float64, seed=seed
    )
    run(case, kind).loss_sum.backward()
    assert case.student_weight.grad.sum(dim=0).abs().max().item() <= 1e-11 * scale * vocab


def test_the_gradient_is_scaled_by_what_comes_from_above():
    case, same = make_case(), make_case()
    (run(case, "jsd").loss_sum * 0.25).backward()
    run(same, "jsd").loss_sum.backward()
    torch.testing.assert_close(case.student_hidden.grad, same.student_hidden.grad * 0.25)
    torch.testing.assert_close(case.student_weight.grad, same.student_weight.grad * 0.25)


def test_a_second_backward_through_a_retained_graph_gives_the_same_gradient_again():
    case = make_case()
    loss = run(case, "reverse_kl").loss_sum * 3.0
    loss.backward(retain_graph=True)
    once = case.student_weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(case.student_weight.grad, 2 * once)


@pytest.mark.parametrize("frozen", ["student_hidden", "student_weight"])
def test_a_frozen_side_gets_no_gradient_and_the_other_is_unchanged(frozen):
    both, one = make_case(), make_case()
    getattr(one, frozen).requires_grad_(False)
    run(both, "forward_kl").loss_sum.backward()
    run(one, "forward_kl").loss_sum.backward()
    trained = "student_weight" if frozen == "student_hidden" else "student_hidden"
    assert getattr(one, frozen).grad is None
    torch.testing.assert_close(getattr(one, trained).grad, getattr(both, trained).grad, rtol=0, atol=0)


def test_without_grad_mode_the_values_are_the_same_and_no_graph_is_made():
    case = make_case()
    with torch.no_grad():
        output = run(case, "jsd")
    assert not output.loss_sum.requires_grad
    torch.testing.assert_close(output.loss_sum, run(case, "jsd").loss_sum.detach(), rtol=0, atol=0)


def test_the_teacher_receives_no_gradient():
    case = make_case()
    case.teacher_hidden.requires_grad_()
    case.teacher_weight.requires_grad_()
    run(case, "jsd").loss_sum.backward()
    assert case.teacher_hidden.grad is None
    assert case.teacher_weight.grad is None


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
def test_bf16_inputs_are_computed_in_fp32_and_only_their_gradients_are_rounded(kind):
    case = make_case(dtype=torch.bfloat16)
    loss, _, grad_hidden, grad_weight = reference(case, kind)
    ours = run(case, kind)
    ours.loss_sum.backward()
    assert ours.loss_sum.dtype == ours.divergence.dtype == torch.float32
    assert relative_error(ours.loss_sum, loss) <= 1e-5
    assert case.student_weight.grad.dtype == case.student_hidden.grad.dtype == torch.bfloat16
    # One rounding to 8 significant bits: at most 2^-9 relative each entry.
    assert relative_error(case.student_weight.grad, grad_weight) <= 2**-9
    assert relative_error(case.student_hidden.grad, grad_hidden) <= 2**-9


def test_autocast_does_not_round_the_logits():
    case = make_case()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(case, "reverse_kl")
    torch.testing.assert_close(inside.loss_sum, run(case, "reverse_kl").loss_sum, rtol=0, atol=0)


def test_tied_embedding_collects_both_gradients():
    case = make_case()
    ids = case.token_ids
    run(case._replace(student_hidden=case.student_weight[ids]), "reverse_kl").loss_sum.backward()
    weight = case.student_weight.detach().double().requires_grad_()
    teacher_logits = case.teacher_hidden.double() @ case.teacher_weight.double().T
    values = divergence(weight[ids] @ weight.T, teacher_logits, "reverse_kl")
    (values * case.weights.double()).sum().backward()
    assert relative_error(case.student_weight.grad, weight.grad) <= 1e-5


@pytest.mark.parametrize("name", ["weights", "teacher_hidden"])
def test_per_token_inputs_of_different_length_are_refused_by_name(name):
    case = make_case()
    with pytest.raises(ValueError, match="same length T"):
        run(case._replace(**{name: getattr(case, name)[:-1]}), "reverse_kl")


def test_token_ids_of_another_length_are_refused():
    case = make_case()
    with pytest.raises(ValueError, match="token_ids"):
        run(case, "reverse_kl", token_ids=case.token_ids[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"beta": 1.0}, "0 < beta < 1"),
        ({"temperature": 0.0}, "temperature=0.0"),
    ],
)
def test_an_undefined_call_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run(make_case(num_tokens=2), "jsd", **options)


def count_flops():
    # torch counts addmm, but not its in-place form, which adds up the weight's gradient.
    def addmm_in_place(_sum, left, right, **_options):
        return 2 * left[0] * left[1] * right[1]

    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_in_place})


@pytest.mark.parametrize(
    ("frozen", "products"),
    [
        ((), TEACHER_DIM + 3 * STUDENT_DIM),
        (("student_weight",), TEACHER_DIM + 2 * STUDENT_DIM),
        (("student_weight", "student_hidden"), TEACHER_DIM + STUDENT_DIM),
    ],
)
def test_the_matrix_products_are_the_two_heads_and_each_gradient_that_is_needed(frozen, products):
    # 2 T V d for each: teacher logits, student logits, and dH and dW only where asked for.
    case = make_case()
    for name in frozen:
        getattr(case, name).requires_grad_(False)
    with count_flops() as counted:
        output = run(case, "jsd")
        if output.loss_sum.requires_grad:
            output.loss_sum.backward()
    assert counted.get_total_flops() == 2 * NUM_TOKENS * VOCAB * products


def test_without_grad_mode_no_gradient_is_computed():
    with count_flops() as counted, torch.no_grad():
        run(make_case(), "jsd")
    assert counted.get_total_flops() == 2 * NUM_TOKENS * VOCAB * (TEACHER_DIM + STUDENT_DIM)
