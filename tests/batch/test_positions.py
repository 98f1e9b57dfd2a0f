"""The shift: hidden state prompt_len - 1 + j predicts response token j, shown by hand, on a transformer and against verl."""

import subprocess
import sys

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from opd.batch.builder import rows_from_batch
from opd.batch.rows import RolloutRows, loss_positions, padded_row_starts
from opd.losses import HiddenTargets, Loss, Weights, head_loss

VOCAB = 40


def test_positions_of_packed_rows_by_hand(make_nested, rows):
    # Row starts 0, 6, 12; prompts of 3, 1, 4 tokens; responses of 3, 5, 1, two tokens of which are a tool's.
    # Defect 12: the original runs lm_head on all 17 tokens, prompts and tool replies included; 7 are trained on.
    found = loss_positions(rows_from_batch(make_nested(rows)))
    assert found.flat_index.tolist() == [2, 3, 4, 6, 9, 10, 15]
    assert found.token_ids.tolist() == [21, 22, 0, 23, 26, 27, 28]
    assert found.row.tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_positions_of_padded_rows_differ_by_the_row_starts_only(make_nested, rows):
    packed_rows = rows_from_batch(make_nested(rows))
    packed = loss_positions(packed_rows)
    padded = loss_positions(packed_rows, row_starts=padded_row_starts(3, 8))
    assert padded.flat_index.tolist() == [2, 3, 4, 8, 11, 12, 19]
    assert all(torch.equal(a, b) for a, b in zip(packed[1:], padded[1:], strict=True))


def test_a_row_without_a_response_has_no_positions(make_nested):
    found = loss_positions(rows_from_batch(make_nested([([1, 2], [], []), ([3], [4], [1])])))
    assert found.flat_index.tolist() == [2]
    assert found.row.tolist() == [1]


def tiny_model(seed, hidden_size, vocab_size):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.5,  # large, so that every earlier token visibly matters
        tie_word_embeddings=False,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def student():
    return tiny_model(0, hidden_size=16, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def teacher():
    return tiny_model(1, hidden_size=24, vocab_size=48)  # padded beyond the tokenizer's 40


def flat_hidden(model, rows: RolloutRows):
    """[B * L, d] final hidden states of one right-padded forward, and the row starts in it."""
    padded = rows.nested(rows.input_ids).to_padded_tensor(0)
    mask = rows.nested(torch.ones_like(rows.input_ids)).to_padded_tensor(0)
    with torch.no_grad():
        hidden = model.model(input_ids=padded, attention_mask=mask).last_hidden_state
    return hidden.flatten(0, 1), padded_row_starts(*padded.shape)


def distil(student, teacher, rows: RolloutRows):
    student_hidden, starts = flat_hidden(student, rows)
    teacher_hidden, _ = flat_hidden(teacher, rows)
    found = loss_positions(rows, row_starts=starts)
    return head_loss(
        student_hidden[found.flat_index],
        student.lm_head.weight,
        found.token_ids,
        Weights(divergence=torch.ones(len(found.row))),
        Loss("reverse_kl"),
        targets=HiddenTargets(teacher_hidden[found.flat_index], teacher.lm_head.weight),
        chunk=4,
        valid_vocab=VOCAB,
    )


PROMPT, RESPONSE = [5, 9, 2], [7, 1, 30, 12, 8]


def with_response(make_nested, prompt, response):
    """The row of interest between two others, so that a shift across rows would show."""
    return rows_from_batch(
        make_nested([([3, 4], [6], [1]), (prompt, response, [1] * len(response)), ([8], [9, 9], [1, 1])])
    )


def divergence_of_middle_row(student, teacher, make_nested, prompt=PROMPT, response=RESPONSE):
    return distil(student, teacher, with_response(make_nested, prompt, response)).statistics["divergence"][1:6]


@pytest.mark.parametrize("k", range(5))
def test_divergence_at_token_k_does_not_see_token_k_or_later_ones(student, teacher, make_nested, k):
    before = divergence_of_middle_row(student, teacher, make_nested)
    others = [(token + 11) % VOCAB for token in RESPONSE[k:]]
    after = divergence_of_middle_row(student, teacher, make_nested, response=RESPONSE[:k] + others)
    torch.testing.assert_close(after[: k + 1], before[: k + 1], rtol=1e-5, atol=1e-6)
    assert bool(((after[k + 1 :] - before[k + 1 :]).abs() > 1e-3).all())


@pytest.mark.parametrize("k", range(5))
def test_divergence_at_token_k_sees_token_k_minus_1(student, teacher, make_nested, k):
    before = divergence_of_middle_row(student, teacher, make_nested)
    prompt, response = list(PROMPT), list(RESPONSE)
    if k == 0:
        prompt[-1] += 11
    else:
        response[k - 1] = (response[k - 1] + 11) % VOCAB
    after = divergence_of_middle_row(student, teacher, make_nested, prompt, response)
    assert (after[k] - before[k]).abs().item() > 1e-3


def test_log_probabilities_are_those_of_the_models_own_logits_one_step_earlier(student, teacher, make_nested):
    rows = with_response(make_nested, PROMPT, RESPONSE)
    output = distil(student, teacher, rows)
    with torch.no_grad():
        logits = student(torch.tensor([PROMPT + RESPONSE])).logits[0].double()
    expected = torch.log_softmax(logits, dim=-1)[range(2, 7), RESPONSE]
    torch.testing.assert_close(output.statistics["log_prob"][1:6].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_row_alone_and_among_padded_others_gives_the_same_divergence(student, teacher, make_nested):
    together = divergence_of_middle_row(student, teacher, make_nested)
    alone = distil(student, teacher, with_response(make_nested, PROMPT, RESPONSE).select([1])).statistics["divergence"]
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def test_positions_agree_with_the_slices_verl_takes_of_its_own_outputs(make_nested, rows):
    from verl.workers.utils.padding import response_from_nested

    batch = make_nested([(prompt, response, [1] * len(response)) for prompt, response, _ in rows])
    packed = rows_from_batch(batch)
    flat = torch.arange(len(packed.input_ids))
    theirs = response_from_nested(packed.nested(flat), batch["response_mask"])
    assert torch.equal(theirs.values(), loss_positions(packed).flat_index)


@pytest.mark.slow
def test_losses_and_batch_load_neither_verl_nor_ray():
    code = "import sys, opd.batch, opd.losses; print(sorted({'verl', 'ray', 'transformers'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"
