"""The toy task's reward, through the entry that verl loads."""

import asyncio

from opd.rewards.entry import compute_score, compute_score_async


def test_exact_match_ignores_white_space_at_the_ends_only():
    assert compute_score("toy_add", " 042\n", "042", function="exact_match", timeout_s=5.0) == {
        "score": 1.0,
        "acc": 1.0,
        "pred": "042",
        "failed": 0,
    }
    assert compute_score("toy_add", "0 42", "042", function="exact_match", timeout_s=5.0)["score"] == 0.0


def test_exact_match_does_not_compare_numbers():
    assert compute_score("toy_add", "42", "042", function="exact_match", timeout_s=5.0)["acc"] == 0.0


def test_the_coroutine_gives_the_same_row_as_the_function():
    arguments = {"function": "exact_match", "timeout_s": 5.0}
    row = asyncio.run(compute_score_async("toy_add", "7", "7", {"index": 3}, **arguments))
    assert row == compute_score("toy_add", "7", "7", {"index": 3}, **arguments)
