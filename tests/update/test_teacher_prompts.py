"""A teacher with prompts of its own through the real worker: each token is compared with what the teacher says after its prompt."""

import random

import numpy as np
import pytest
from tests.update.exact import ULYSSES, WAYS, check, check_bits, cut, expected, in_all_ways, run
from tests.update.models import VOCAB, uneven_rows
from tests.update.workers import Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BY_STUDENT, BY_TEACHER = (
    [f"opd.importance.tokens.score={score}", "opd.importance.tokens.ratio=0.5"] for score in ("entropy", "divergence")
)
NUM_ROWS = 8


def _rows() -> list[dict]:
    """Return rows whose teacher reads a longer prompt, a shorter one, or in the first row the same."""
    rng = random.Random(7)
    rows = uneven_rows(NUM_ROWS)
    for number, row in enumerate(rows):
        hint = [rng.randrange(3, VOCAB) for _ in range(1 + 3 * number)]
        row["teacher_prompt"] = [hint[0]] if number == 3 else row["prompt"] + (hint if number else [])
    return rows


@pytest.fixture(scope="module")
def case(pair) -> Case:
    return Case(student=pair["student"], teacher=pair["teacher"], rows=_rows(), shown=tuple(range(NUM_ROWS)))


@pytest.fixture(scope="module")
def runs(case) -> dict:
    both = {"a": case.teacher, "b": case.teacher}
    halves = [row | {"teacher": number % 2} for number, row in enumerate(_rows())]
    unread = [row | ({"teacher_prompt": [3, 61, 4]} if not number else {}) for number, row in enumerate(_rows())]
    chosen = {
        (world, f"chosen by the {who}"): cut(case, sets=sets, micro_batch=size)
        for world in (1, 2)
        for who, sets, size in (("student", BY_STUDENT, 2), ("teacher", BY_TEACHER, 4))
    }
    return run(
        in_all_ways(case)
        | chosen
        | {
            (2, "chosen in a shared sequence"): cut(case, sets=BY_TEACHER, overrides=ULYSSES, micro_batch=2),
            **{(n, "two teachers"): cut(case, teachers=both, rows=halves, shown=(), micro_batch=2) for n in (1, 2)},
            (1, "the student's"): cut(case, rows=[row | {"teacher_prompt": row["prompt"]} for row in _rows()]),
            (1, "none"): cut(case, rows=uneven_rows(NUM_ROWS)),
            (1, "a token that the teacher lacks"): cut(case, rows=unread),
        }
    )


@pytest.fixture(scope="module")
def reference(case) -> dict:
    return expected(case)


@pytest.mark.parametrize("way", [*WAYS, (1, "two teachers"), (2, "two teachers")], ids=str)
def test_loss_and_gradient_are_those_of_the_teacher_behind_its_own_prompts(reference, runs, way):
    check(runs[way], reference)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_tokens_divergence_is_that_of_the_same_token_behind_both_prompts(reference, runs, way):
    seen = runs[way]["seen"]
    assert sorted(seen) == [number for number, kl in enumerate(reference["rows"]) if len(kl)]
    for number, view in seen.items():
        np.testing.assert_allclose(view.divergence, reference["rows"][number], rtol=2e-4, atol=1e-5)


def test_tokens_are_chosen_by_what_the_teacher_says_behind_its_own_prompt(reference, runs):
    for way in ((1, "chosen by the teacher"), (2, "chosen by the teacher"), (2, "chosen in a shared sequence")):
        for number, view in runs[way]["seen"].items():
            kl = reference["rows"][number]
            assert sorted(view.kept.nonzero()[0]) == sorted(np.argsort(-kl, kind="stable")[: len(kl) // 2])


@pytest.mark.parametrize("world", [1, 2])
def test_tokens_that_the_student_chooses_are_compared_at_their_own_places(reference, runs, world):
    for number, view in runs[world, "chosen by the student"]["seen"].items():
        kept = view.kept
        assert kept.sum() == len(kept) // 2
        np.testing.assert_allclose(view.divergence[kept], reference["rows"][number][kept], rtol=2e-4, atol=1e-5)


def test_an_own_prompt_that_is_the_students_changes_no_bit(runs):
    check_bits(runs[1, "the student's"], runs[1, "none"])


def test_a_row_whose_own_prompt_has_a_token_that_the_teacher_lacks_trains_nothing(runs, reference):
    found, left_out = runs[1, "a token that the teacher lacks"]["metrics"], len(reference["rows"][0])
    assert found["opd/unshared_tokens"] == left_out > 0
    assert found["opd/num_tokens"] == sum(map(len, reference["rows"])) - left_out
