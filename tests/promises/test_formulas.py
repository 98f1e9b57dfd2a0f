"""Formulas of the seed, against plain arithmetic: the three divergences and the two math rewards."""

from typing import Any

import pytest
import torch
from tests.scoring import compute_score

from opd.losses import divergence


def scored(function: str, answer: str, truth: str) -> dict[str, Any]:
    """Return the row of a scorer by its key `reward.function`."""
    return compute_score("math", answer, truth, {}, function=function, timeout_s=10.0)


BOXED = [
    ("so \\boxed{42}", "42", 1),
    ("so \\boxed{41}", "42", 0),
    ("first \\boxed{41}, then \\boxed{42}", "42", 1),
    ("first \\boxed{42}, then \\boxed{41}", "42", 0),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1),
    ("\\boxed{\\frac{\\sqrt{3}}{2}} and more text", "\\frac{\\sqrt{3}}{2}", 1),
    ("\\fbox{7}", "7", 1),
    ("\\boxed{\\dfrac12}", "\\frac{1}{2}", 1),
    ("\\boxed{ 3\\!x }", "3x", 1),
    ("\\boxed{\\left( 3, 4 \\right)}", "(3,4)", 1),
    ("42", "42", 0),
    ("\\boxed{42", "42", 0),
    ("", "42", 0),
]


@pytest.mark.parametrize(("answer", "truth", "score"), BOXED)
def test_math_reward_compares_the_last_box_after_hendrycks_normalisation(answer, truth, score):
    row = scored("math_reward", answer, truth)
    assert (row["score"], row["acc"]) == (score, score)


LINES = [
    ("Answer: 42", "42", 1),
    ("answer :  42", "42", 1),
    ("Answer: 41", "42", -1),
    ("Answer: 41\nAnswer: 42", "42", 1),
    ("Answer: 42\nAnswer: 41", "42", -1),
    ("Answer: $42$", "42", 1),
    ("Answer: 1,000", "1000", 1),
    ("Answer: 42 dollars", "42", 1),
    ("\\boxed{42}", "42", -1),
    ("Answer: 42\n" + "." * 300, "42", -1),
    ("." * 300 + "\nAnswer: 42", "42", 1),
    ("", "42", -1),
]


@pytest.mark.parametrize(("answer", "truth", "score"), LINES)
def test_math_dapo_compares_the_last_answer_line_of_300_characters_after_minervas(answer, truth, score):
    row = scored("math_dapo", answer, truth)
    assert (row["score"], bool(row["acc"])) == (score, score > 0)


def test_math_dapo_says_which_answer_it_read():
    assert scored("math_dapo", "Answer: 41", "42")["pred"] == "41"
    assert scored("math_dapo", "it is 42", "42")["pred"] == "[INVALID]"


def expected(kind: str, student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Return a divergence by its formula over the whole vocabulary."""
    p, q = torch.softmax(student, -1), torch.softmax(teacher, -1)

    def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * (a.log() - b.log())).sum(-1)

    if kind == "jsd":
        mixture = beta * q + (1 - beta) * p
        return beta * kl(q, mixture) + (1 - beta) * kl(p, mixture)
    return kl(p, q) if kind == "reverse_kl" else kl(q, p)


@pytest.mark.parametrize(("kind", "beta"), [("reverse_kl", 0.5), ("forward_kl", 0.5), ("jsd", 0.5), ("jsd", 0.1)])
def test_a_divergence_is_its_formula_over_the_whole_vocabulary(kind, beta):
    made = torch.Generator().manual_seed(7)
    student, teacher = (3 * torch.randn(16, 301, generator=made, dtype=torch.float64) for _ in range(2))
    found = divergence(student, teacher, kind, beta=beta)
    assert torch.allclose(found, expected(kind, student, teacher, beta), rtol=1e-12)
    assert torch.allclose(
        divergence(student, student, kind, beta=beta), torch.zeros(16, dtype=torch.float64), atol=1e-12
    )
