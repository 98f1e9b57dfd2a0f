"""The reward functions against a table of answers, each with its own bound on time."""

import time
from typing import NamedTuple

import pytest
from tests.scoring import compute_score

from opd.rewards import BUILTIN_FUNCTIONS

MB = 1_000_000
BOUND_S = 5.0
"""For string work that takes 0.3 s at most on one idle core: a hang exceeds it, a busy machine does not."""


class Answer(NamedTuple):
    """One row: what was said, the truth, and whether each function must find it right."""

    name: str
    text: str
    truth: str
    boxed: bool  # math_reward
    line: bool  # math_dapo
    verified: bool  # math_verify


ORDINARY = [
    # The box: where it is, and which one counts.
    Answer("boxed integer", r"so $\boxed{42}$.", "42", True, False, True),
    Answer("spaces inside", r"\boxed{ 42 }", "42", True, False, True),
    Answer("a space before the brace", r"\boxed {42}", "42", True, False, False),
    Answer("no braces", r"$\boxed 42$", "42", True, False, True),
    Answer("fbox", r"\fbox{42}", "42", True, False, False),
    Answer(
        "the last of two boxes is right",
        r"$\boxed{1}$. No, it is $\boxed{42}$",
        "42",
        True,
        False,
        True,
    ),
    Answer(
        "the last of two boxes is wrong",
        r"$\boxed{42}$. No, it is $\boxed{1}$",
        "42",
        False,
        False,
        False,
    ),
    Answer("box never closed", r"\boxed{42", "42", False, False, False),
    Answer("a right box, then one cut off", r"\boxed{42} and so \boxed{4", "42", False, False, False),
    Answer("cut off within the thought", r"<think>maybe \boxed{42}", "42", False, False, False),
    Answer("another command that begins alike", r"\boxedeq{42}", "42", False, False, False),
    # Fractions and roots.
    Answer("fraction", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", True, False, True),
    Answer("dfrac", r"\boxed{\dfrac{1}{2}}", r"\frac{1}{2}", True, False, True),
    Answer("tfrac without braces", r"\boxed{\tfrac12}", r"\frac{1}{2}", True, False, True),
    Answer("slash", r"\boxed{1/2}", r"\frac{1}{2}", True, False, True),
    Answer("decimal one half", r"\boxed{0.5}", r"\frac{1}{2}", True, False, True),
    Answer("decimal quarter against a fraction", r"\boxed{0.25}", r"\frac{1}{4}", False, False, True),
    Answer("unreduced fraction", r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", False, False, True),
    Answer("upside down", r"\boxed{\frac{2}{1}}", r"\frac{1}{2}", False, False, False),
    Answer("leading dot", r"\boxed{.25}", "0.25", True, False, True),
    Answer("root without braces", r"\boxed{\sqrt3}", r"\sqrt{3}", True, False, True),
    # Units and signs.
    Answer("degrees", r"\boxed{90^\circ}", "90", True, False, True),
    Answer("unit after a space", r"\boxed{5\text{ cm}}", "5", True, False, True),
    Answer("unit without a space", r"\boxed{5\text{cm}}", "5", True, False, True),
    Answer("dollars", r"\boxed{\$18.90}", "18.90", True, False, True),
    Answer("percent", r"\boxed{50\%}", "50", True, False, True),
    Answer("thousands comma", r"\boxed{1,000}", "1000", True, False, True),
    Answer("thousands in braces", r"\boxed{2{,}220}", "2220", True, False, True),
    Answer("truth in dollars", r"\boxed{10-4n}", "$10-4 n$", True, False, True),
    Answer("truth in a box", r"Answer: 70 so \boxed{70}", r"\boxed{70}", True, False, True),
    Answer("minus sign", "Answer: \u22123 and \\boxed{\u22123}", "-3", True, False, True),
    Answer("full stop", r"\boxed{5.}", "5", True, False, True),
    Answer("a whole number as a float", r"\boxed{70.0}", "70", True, False, True),
    Answer("a set in another order", r"\boxed{\{2, 1\}}", r"\{1,2\}", True, False, True),
    Answer("a pair in another order", r"\boxed{(2, 1)}", "(1,2)", False, False, False),
    Answer("one of two answers", r"\boxed{1728}", "1331 and 1728", False, False, False),
    Answer("two answers in another order", r"\boxed{1728, 1331}", "1331 and 1728", True, False, True),
    Answer("another line", r"\boxed{3x-y+13=0}", "3x + 4y + 14=0", False, False, False),
    Answer("negative", r"\boxed{-7}", "-7", True, False, True),
    Answer("sign lost", r"\boxed{7}", "-7", False, False, False),
    Answer("leading zeros", r"\boxed{025}", "25", True, False, True),
    Answer("tiny numbers", r"\boxed{2^{-60}}", "2^{-61}", False, False, False),
    Answer("clock times", r"\boxed{1:00}", "12:00", False, False, False),
    # Other LaTeX.
    Answer("variable prefix", r"\boxed{x=5}", "5", True, False, True),
    Answer(
        "left and right", r"\boxed{\left(3,\frac{\pi}{2}\right)}", r"\left( 3, \frac{\pi}{2} \right)", True, False, True
    ),
    Answer("set", r"\boxed{\{1,2\}}", r"\{1,2\}", True, False, True),
    Answer("interval", r"\boxed{(1,2]}", "(1,2]", True, False, True),
    Answer("interval, open the other way", r"\boxed{[1,2)}", "(1,2]", False, False, False),
    Answer("polynomial", r"\boxed{x^2+1}", "x^2+1", True, False, True),
    Answer("polynomial in another order", r"\boxed{1+x^2}", "x^2+1", False, False, True),
    Answer(
        "matrix", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}", True, False, True
    ),
    Answer("text", r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True, False, True),
    Answer("text in the truth alone", r"\boxed{Evelyn}", r"\text{Evelyn}", True, False, True),
    Answer("malformed fraction", r"\boxed{\frac}", "42", False, False, False),
    Answer("full-width digits", r"\boxed{４２}", "42", False, False, False),
    # The answer line.
    Answer("answer line", "Answer: 42", "42", False, True, True),
    Answer("answer line, lower case and spaced", "answer : 42", "42", False, True, True),
    Answer("answer line with dollars", "Answer: $42$", "42", False, True, True),
    Answer("answer line with a box", r"Answer: \boxed{42}", "42", True, True, True),
    Answer("the last of two lines is right", "Answer: 1\nAnswer: 42", "42", False, True, True),
    Answer("the last of two lines is wrong", "Answer: 42\nAnswer: 1", "42", False, False, False),
    Answer("answer line with a unit", "Answer: 42 degrees", "42", False, True, True),
    Answer("answer line with a thousands comma", "Answer: 1,234", "1234", False, True, True),
    Answer("answer line with an equation", "Answer: x = 42", "42", False, True, True),
    Answer("answer line beyond the last 300 characters", "Answer: 42\n" + "x" * 400, "42", False, False, True),
    Answer("answer label without a value", "Answer:", "42", False, False, False),
    # Neither.
    Answer("last number right", "we get 6 * 7 = 42", "42", False, False, True),
    Answer("last number wrong", "we get 6 * 7 = 43", "42", False, False, False),
    Answer("empty", "", "42", False, False, False),
    Answer("white space", " \n\t ", "42", False, False, False),
    Answer("prose", "I do not know.", "42", False, False, False),
    Answer("1 MB of text, then the answer", "a " * (MB // 2) + "\\boxed{42}\nAnswer: 42", "42", True, True, True),
]

HOSTILE = [
    ("1 MB in a box", r"\boxed{" + "1" * MB + "}"),
    ("1 MB of open braces", r"\boxed" + "{" * MB),
    ("1 MB of backslashes in a box", r"\boxed{" + "\\" * MB),
    ("100,000 wrong boxes", r"\boxed{1}" * 100_000),
    ("1 MB of fractions in a box", r"\boxed{" + r"\frac" * (MB // 5) + "}"),
    ("2000 characters of fractions in a box", r"\boxed{" + r"\frac" * 399 + "}"),
    ("100,000 answer labels", "Answer: " * 100_000),
    ("1 MB of white space after a label", "Answer:" + " " * MB),
    ("1 MB of dollars", "$" * MB),
    ("dollars after a label", "Answer: " + "a$" * 140),
    ("unclosed text commands after a label", "Answer: " + r"\text{" * 48),
    ("100,000 digits and commas", "1," * 50_000),
    ("tower of powers", r"\boxed{9^{9^{9^{9^{9}}}}}"),
    ("factorials", r"\boxed{((((((9!)!)!)!)!)!)}"),
    ("5000 nested parentheses", r"\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}"),
    ("1500 digits", r"\boxed{" + "9" * 1500 + "}"),
    ("null bytes", "\x00" * MB),
]


def ids(rows) -> list[str]:
    return [row[0] for row in rows]


def timed_score(function: str, text: str, truth: str, *, timeout_s: float, bound_s: float) -> dict:
    # Of what runs in this thread its own time, which no other process of the machine changes.
    clock_s = time.monotonic if function == "math_verify" else time.thread_time
    started_s = clock_s()
    row = compute_score("math", text, truth, {"index": 0}, function=function, timeout_s=timeout_s)
    assert clock_s() - started_s < bound_s
    return row


@pytest.mark.parametrize("answer", ORDINARY, ids=ids(ORDINARY))
def test_math_reward_is_one_or_zero_by_the_last_box(answer):
    row = timed_score("math_reward", answer.text, answer.truth, timeout_s=BOUND_S, bound_s=BOUND_S)
    assert (row["score"], row["acc"], row["failed"]) == (float(answer.boxed), float(answer.boxed), 0)


@pytest.mark.parametrize("answer", ORDINARY, ids=ids(ORDINARY))
def test_math_dapo_is_plus_or_minus_one_by_the_last_answer_line(answer):
    row = timed_score("math_dapo", answer.text, answer.truth, timeout_s=BOUND_S, bound_s=BOUND_S)
    assert (row["score"], row["acc"], row["failed"]) == (1.0 if answer.line else -1.0, float(answer.line), 0)


@pytest.mark.parametrize("answer", ORDINARY, ids=ids(ORDINARY))
def test_math_verify_is_one_or_zero_by_mathematical_equality(answer):
    row = timed_score("math_verify", answer.text, answer.truth, timeout_s=60.0, bound_s=60.0)
    assert (row["score"], row["acc"], row["failed"]) == (float(answer.verified), float(answer.verified), 0)


@pytest.mark.parametrize("function", [name for name, of in BUILTIN_FUNCTIONS.items() if not of.isolated])
@pytest.mark.parametrize(("name", "text"), HOSTILE, ids=ids(HOSTILE))
def test_hostile_answers_are_wrong_at_once(function, name, text):
    row = timed_score(function, text, "42", timeout_s=BOUND_S, bound_s=BOUND_S)
    assert (row["acc"], row["failed"]) == (0.0, 0)
    assert row["score"] == BUILTIN_FUNCTIONS[function].worst_score
    assert len(row["pred"]) <= 2000


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), HOSTILE, ids=ids(HOSTILE))
def test_hostile_answers_score_zero_under_math_verify_by_its_deadline(name, text):
    # The bound allows for a fresh process that imports SymPy on a busy machine; the hang itself ends after 0.5 s.
    assert timed_score("math_verify", text, "42", timeout_s=0.5, bound_s=60.0)["score"] == 0.0
