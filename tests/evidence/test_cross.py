"""The study of a teacher with another tokenizer: where two tokenizations meet, and what each loss over spans says."""

from __future__ import annotations

import math

import pytest
import torch
from tests.evidence import cross
from tests.evidence.cross import Pair, Result, Side
from torch import Tensor

from opd.data.toy.models import build_model
from opd.data.toy.task import split_problems
from opd.losses.divergence import divergence


def _lengths(*pieces: str | bytes) -> list[int]:
    return [len(piece.encode() if isinstance(piece, str) else piece) for piece in pieces]


@pytest.mark.parametrize(
    ("student", "teacher", "expected"),
    [
        (("0", "4", "1"), ("04", "1"), ([0, 0, 1], [0, 1])),
        (("ab", "c", "d"), ("a", "bc", "d"), ([0, 0, 1], [0, 0, 1])),
        ((" the", "  ", "\n"), (" ", "the", "  \n"), ([0, 1, 1], [0, 0, 1])),
        # one emoji of four bytes, cut by both in its middle, and a letter of two
        ((b"\xf0\x9f", b"\x99\x82", "é"), (b"\xf0", b"\x9f\x99\x82", b"\xc3", b"\xa9"), ([0, 0, 1], [0, 0, 1, 1])),
        (("Z", "ü", "rich"), ("Zü", "rich"), ([0, 0, 1], [0, 1])),
        ((), (), ([], [])),
        # an answer that ends within a character: its first byte is the student's last token and no one's text
        (("a", b"\xc3"), ("a",), ([0, -1], [0])),
        (("a",), ("bc",), ([-1], [-1])),
    ],
)
def test_a_span_ends_where_both_end_a_token(student, teacher, expected):
    assert cross.spans_of(_lengths(*student), _lengths(*teacher)) == expected


def test_the_other_tokenizer_shares_text_and_no_ids(tokenizer):
    foreign = cross.build_foreign_tokenizer()
    problem = split_problems().heldout[0]
    assert foreign.tokenize("48+15=063") == ["4", "8", "+", "1", "5", "=", "06", "3"]
    assert foreign.decode(foreign.encode("48+15=063")) == "48+15=063"
    ours, theirs = cross.shared_tokens(tokenizer, foreign)[:, :-1]
    assert (ours != theirs).all()
    assert tokenizer.convert_ids_to_tokens(ours.tolist()) == foreign.convert_ids_to_tokens(theirs.tolist())
    assert (
        foreign.apply_chat_template(problem.messages, add_generation_prompt=True, tokenize=False)
        == f"<|turn|>user: {problem.question}<|stop|><|turn|>"
    )


def test_a_response_is_aligned_up_to_its_end_or_to_what_has_no_text(tokenizer):
    pair = Pair(tokenizer, cross.build_foreign_tokenizer())
    stop, (padding, end) = pair.teacher.eos_token_id, (tokenizer.pad_token_id, tokenizer.eos_token_id)
    said = tokenizer("041")["input_ids"]
    read, ours, theirs = pair.aligned([[*said, end], said[:2], [], [said[0], padding, said[1]]])
    assert [pair.teacher.convert_ids_to_tokens(row) for row in read] == [["04", "1", "<|stop|>"], ["0", "4"], [], ["0"]]
    assert read[0][-1] == stop
    assert ours == [[0, 0, 1, 2], [0, 1], [], [0, -1, -1]]
    assert theirs == [[0, 1, 2], [0, 1], [], [0]]


def _side(probs: list[list[float]], tokens: list[int], spans: list[int]) -> Side:
    return Side(torch.tensor(probs, dtype=torch.float64).log(), torch.tensor(tokens), torch.tensor(spans))


STUDENT = ([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]], [0, 1], [0, 0])
"""Says a token of 0.5, then one of 0.6, in one span."""
NO_TOKENS = torch.zeros(2, 0, dtype=torch.int64)


def test_the_likelihood_of_a_span_is_the_product_of_its_tokens():
    student, teacher = _side(*STUDENT), _side([[0.9, 0.1]], [0], [0])
    [found] = cross.likelihood(student, teacher, 1, NO_TOKENS)
    assert float(found) == pytest.approx(0.3 * math.log(0.3 / 0.9) + 0.7 * math.log(0.7 / 0.1))
    assert float(cross.likelihood(student, student, 1, NO_TOKENS)) == pytest.approx(0.0, abs=1e-12)


def test_merged_probabilities_keep_the_tokens_that_were_said_before():
    assert torch.allclose(
        _side(*STUDENT).merged(1).exp(), torch.tensor([[0.05, 0.3, 0.15]], dtype=torch.float64), atol=1e-12
    )


def test_sorted_probabilities_do_not_tell_which_token_the_teacher_means():
    student = _side([[0.7, 0.2, 0.1]], [0], [0])
    agrees, objects = (_side([[0.05, *probs]], [1], [0]) for probs in ((0.9, 0.05), (0.05, 0.9)))
    found = [cross.uld(student, teacher, 1, NO_TOKENS) for teacher in (agrees, objects)]
    assert float(found[0]) == float(found[1]) == pytest.approx(0.2 + 0.15 + 0.05)
    assert float(cross.likelihood(student, _side([[0.05, 0.05, 0.9]], [1], [0]), 1, NO_TOKENS)) > 1.0


def test_golds_form_is_the_exact_divergence_where_every_token_is_shared():
    ours, theirs = (
        torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    renamed = torch.tensor([3, 0, 4, 1, 2])  # token k of the student is the teacher's renamed[k]
    spans, shared = torch.arange(4), torch.stack([torch.arange(5), renamed])

    def side(logits: Tensor) -> Side:
        return Side(torch.log_softmax(logits, dim=-1), torch.zeros(4, dtype=torch.int64), spans)

    found = cross.gold(side(ours), side(2 * theirs), 4, shared)
    assert torch.allclose(found, divergence(ours, 2 * theirs[:, renamed], "reverse_kl"), atol=1e-12)


def test_a_run_counts_what_was_aligned(monkeypatch, tokenizer):
    monkeypatch.setattr(cross, "NUM_UPDATES", 2)
    monkeypatch.setattr(cross, "share_right", lambda *_, seed: 0.25)
    foreign = cross.build_foreign_tokenizer()
    teacher = build_model(cross.TEACHER, foreign, seed=3).eval()
    for cell in ("likelihood", "uld", "gold"):
        found = cross.run(cell, teacher, Pair(tokenizer, foreign), seed=3)
        assert found.gain == 0.0
        assert 0.9 < found.aligned <= 1.0
        assert 0.6 < found.one_to_one < 0.8, "two of three spans of an answer of three digits"


def test_both_bounds_of_the_rule_are_paired_by_seed():
    after = {
        "same": (0.5, 0.4),
        "likelihood": (0.46, 0.37),
        "likelihood_habit": (0.0, 0.01),
        "uld": (0, 0),
        "gold": (0, 0),
    }
    results = [
        Result(cell=cell, seed=seed, before=0.0, after=gain, aligned=1.0, one_to_one=1.0)
        for cell, of in after.items()
        for seed, gain in enumerate(of, start=1)
    ]
    assert cross.gains(results, "likelihood", 0.9, "same").mean == pytest.approx((46 - 45 + 37 - 36) / 2)
    assert cross.gains(results, "likelihood", 1.0, "likelihood_habit").mean == pytest.approx((46 + 36) / 2)
    assert "| `likelihood` (primary) | 0.922 |" in cross.table(results)
