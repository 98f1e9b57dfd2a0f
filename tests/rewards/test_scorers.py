"""Reports of each reward function, against verl's own code and the rules of the published ones."""

from typing import get_args

import pytest
from tests.scoring import compute_score

from opd.experiment.sections import Scorer
from opd.rewards import BUILTIN_FUNCTIONS, NO_ANSWER_PREDICTIONS, is_unread
from opd.rewards.dispatch import misread
from opd.rewards.scorers import load_verl_scorer


def score(function: str, text: str, truth: str = "42", **options) -> dict:
    return compute_score("math", text, truth, {"index": 0}, function=function, timeout_s=60.0, **options)


@pytest.mark.parametrize("function", BUILTIN_FUNCTIONS)
@pytest.mark.parametrize("text", ["42", r"\boxed{42}", "Answer: 42", ""])
def test_every_row_has_the_same_keys_and_types(function, text):
    row = score(function, text)
    assert {key: type(value) for key, value in row.items()} == {
        "score": float,
        "acc": float,
        "pred": str,
        "failed": int,
    }


# Defect 10 of the original: `pred` was empty, so that a majority vote meant nothing.
@pytest.mark.parametrize(
    ("function", "text", "pred"),
    [
        ("exact_match", " 042\n", "042"),
        ("math_reward", r"so \boxed{\dfrac12}", r"\frac{1}{2}"),
        ("math_reward", r"so \boxed{ 7 }", "7"),
        ("math_dapo", "Answer: $1,234$ degrees", "1234"),
        ("math_verify", r"so \boxed{\frac{2}{4}}", "1/2"),
        ("math_verify", "it is 0.5, a half: $1/2$", "1/2"),
        ("math_verify", r"so \boxed{5.0}", "5"),
        ("math_verify", r"so \boxed{x=5}", "5"),
        ("math_verify", r"so \boxed{7:00}", "7:00"),
        ("math_reward", r"so \boxed{x=5}", "5"),
        ("math_reward", r"so \boxed{5.0}", "5"),
    ],
)
def test_pred_is_the_answer_in_a_form_in_which_equal_answers_are_equal_strings(function, text, pred):
    assert score(function, text)["pred"] == pred


@pytest.mark.parametrize("function", BUILTIN_FUNCTIONS)
def test_an_answer_without_an_answer_is_recognisable(function):
    assert (row := score(function, ""))["pred"] in NO_ANSWER_PREDICTIONS
    assert is_unread(function, row)
    assert not is_unread("mine:scorer", row)  # it need not say what it read
    assert not is_unread(function, row | {"failed": 1})
    assert not is_unread(function, row | {"pred": "7"})


@pytest.mark.parametrize(
    "text", [r"\boxed{42}", r"a \boxed{\frac12} b", r"\boxed{5\text{ cm}}", r"\boxed{", "none", r"\boxed{\{1\}}", ""]
)
@pytest.mark.parametrize("truth", ["42", r"\frac{1}{2}", "5", r"\{1\}"])
def test_math_reward_agrees_with_verl_wherever_verl_can_read_the_box(text, truth):
    assert score("math_reward", text, truth)["score"] == load_verl_scorer("math_reward").compute_score(text, truth)


@pytest.mark.parametrize("text", ["Answer: 42", "Answer: 7", "Answer: 1\nanswer: $42$"])
def test_math_dapo_agrees_with_verl_on_an_answer_line(text):
    theirs = load_verl_scorer("math_dapo").compute_score(text, "42")
    ours = score("math_dapo", text)
    assert (ours["score"], bool(ours["acc"]), ours["pred"]) == (theirs["score"], theirs["acc"], theirs["pred"])


@pytest.mark.parametrize(
    ("function", "truth", "is_misread"),
    [("math_reward", "$x^2$", False), ("math_reward", "x" * 2001, True), ("math_dapo", "a\nb", True),
     ("exact_match", " 4", False), ("math_verify", "12", False)],
)  # fmt: skip
def test_a_ground_truth_that_is_not_right_as_its_own_answer_is_found(function, truth, is_misread):
    assert misread(function, [truth]) == [truth] * is_misread


def test_the_experiment_file_names_every_function():
    assert {*get_args(Scorer)} == {*BUILTIN_FUNCTIONS, "environment", "custom"}
