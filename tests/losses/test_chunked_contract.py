"""The chunked form's contract: padded vocabularies, who gets a gradient and in which dtype, what is refused, what is computed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.chunked_cases import (
    NUM_TOKENS,
    STUDENT_DIM,
    TEACHER_DIM,
    VOCAB,
    make_case,
    reference,
    relative_error,
    run,
)
from torch.utils.flop_counter import FlopCounterMode

from opd.losses import DIVERGENCE_KINDS, divergence


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
    after = run(case, "jsd", valid_vocab=VOCAB)
    torch.testing.assert_close(after[:7], before[:7], rtol=0, atol=0)


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
    backbone = torch.nn.Linear(STUDENT_DIM, STUDENT_DIM)
    output = run(case._replace(student_hidden=backbone(case.student_hidden)), kind, token_ids=case.token_ids)
    output.loss_sum.backward()
    assert output.loss_sum.item() == 0.0
    assert backbone.weight.grad.count_nonzero().item() == 0
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
