"""The promises of a run on chosen tokens, read from rows as such runs leave them."""

import pytest
from tests.gpu_smoke.promises import choice_promises


def broken(**of_last_step: float) -> list[str]:
    """The broken promises of two steps at ratio 0.2, the last with these values."""
    step = {"training/global_step": 1.0, "opd/importance/selected": 0.1992, "opd/importance/divergence_covered": 0.185}
    quadrants = {"opd/importance/q4": 0.195, "opd/importance/q4_selected": 0.0019}
    last = {f"opd/importance/{name}": value for name, value in of_last_step.items()}
    found = choice_promises([step | quadrants, step | quadrants | last, {"val-core/toy/acc/mean@1": 0.5}], 0.2)
    return [promise.name for promise in found if not promise.kept]


def test_tokens_chosen_for_their_entropy_may_hold_less_than_their_share_of_the_divergence():
    assert not broken()


@pytest.mark.parametrize("share", [0.18, 0.21])
def test_a_step_that_chose_another_share_breaks_the_promise(share):
    assert broken(selected=share) == ["0.2 of the tokens chosen"]


def test_a_step_that_chose_tokens_low_in_both_scores_as_often_as_others_breaks_the_promise():
    assert broken(q4_selected=0.19) == ["tokens low in both scores are left out"]


def test_a_step_without_tokens_low_in_both_scores_has_left_them_out():
    assert not broken(q4=0.0, q4_selected=0.0)
