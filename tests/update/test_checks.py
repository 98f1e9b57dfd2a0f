"""Ends of a run: skipped updates in a row, what the end names, and mass on tokens that one model lacks."""

import pytest

from opd.errors import Unfit
from opd.update.checks import NonFinite, SkippedUpdates, check_unshared, summary


def test_so_many_skipped_updates_in_a_row_end_the_run_and_name_the_rows():
    skipped = SkippedUpdates(3)
    skipped.see(2, 2, ["data row 1, sample 0"])
    skipped.check()
    skipped.see(1, 1, ["data row 7, sample 2", "data row 1, sample 0"])
    words = r"3 updates in a row .*max_skipped_updates=3.*data row 1, sample 0, data row 7, sample 2"
    with pytest.raises(NonFinite, match=words):
        skipped.check()
    skipped.see(3, 3, [f"data row {number}, sample 0" for number in range(20)])
    with pytest.raises(NonFinite, match="and 13 more"):
        skipped.check()


def test_one_finite_update_starts_the_count_and_the_names_anew_and_zero_lets_the_run_go_on():
    skipped, endless = SkippedUpdates(2), SkippedUpdates(0)
    skipped.see(1, 1, ["data row 1, sample 0"])
    skipped.see(2, 1)
    skipped.check()
    skipped.see(1, 1)
    with pytest.raises(NonFinite, match="it is the gradient itself"):
        skipped.check()
    endless.see(100, 100)
    endless.check()


def test_a_result_says_how_many_updates_were_made_and_skipped():
    history = [{"opd/num_updates": 4, "opd/skipped": 1}, {"opd/num_updates": 4, "opd/skipped_step": 2}, {"val": 1}]
    assert summary(history) == {"updates": 8, "updates_skipped": 3}
    assert summary([]) == {"updates": 0, "updates_skipped": 0}


def test_a_run_of_skipped_updates_only_is_no_success():
    with pytest.raises(NonFinite, match="all 2 updates of the run"):
        summary([{"actor/num_updates": 1, "actor/skipped": 1}] * 2)


METRICS = {"opd/num_tokens": 200.0, "opd/unshared_tokens": 0.0, "opd/unshared_mass_teacher": 0.07}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (METRICS, r"max_unshared_mass=0\.05: the teacher puts 0\.07 .*mean over 200 tokens.*student lacks"),
        (
            METRICS | {"opd/unshared_mass_student": 0.07, "opd/unshared_mass_teacher": 0.0},
            r"the student puts 0\.07 .*teacher lacks",
        ),
        ({"opd/num_tokens": 0.0, "opd/unshared_tokens": 12.0}, "all 12 response tokens"),
    ],
)
def test_a_mass_above_the_bound_or_nothing_left_ends_the_run_with_the_numbers_and_the_key(metrics, words):
    with pytest.raises(Unfit, match=words):
        check_unshared(metrics, limit=0.05)
    check_unshared(METRICS, limit=0.08)
    check_unshared({"opd/num_tokens": 0.0, "opd/unshared_tokens": 0.0}, limit=0.05)
