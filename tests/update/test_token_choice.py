"""Training on chosen tokens through the real worker: the same tokens, loss and gradient however the batch is cut."""

import math

import numpy as np
import pytest
from tests.update.exact import ULYSSES, check_bits, check_gradients, check_same, cut, run
from tests.update.models import uneven_rows
from tests.update.workers import Case

from opd.update.token_view import VALUES
from opd.weights.tokens import TOKEN_SCORES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCORES = [*TOKEN_SCORES]
SHOWN = (0, 2, 5, 7)  # of which 5 has no trained token
ROWS = uneven_rows()
COUNTS = [sum(row["mask"]) for row in ROWS]
SAMPLED = {"mode": "sample", "scope": "batch"}
FORWARD = "{loss_type: forward_kl}"


def _choosing(score: str, ratio: float = 0.5, **more: object) -> dict:
    options = {"score": score, "ratio": ratio, **more}
    return {"sets": [f"opd.importance.tokens.{name}={value}" for name, value in options.items()]}


def _stages(last: str) -> dict:
    return {"sets": [f"opd.stages=[{{until: 3}}, {last}]"]}


def _first(num) -> dict:
    """Keep the first `num(count)` trained tokens of each row."""
    rows = []
    for row in ROWS:
        kept = [place for place, trained in enumerate(row["mask"]) if trained][: num(sum(row["mask"]))]
        rows.append(row | {"mask": [int(place in kept) for place in range(len(row["mask"]))]})
    return {"rows": rows}


def _weighing(weight: float) -> dict:
    return {"rows": [row | {"weight": weight if number == 2 else 1.0} for number, row in enumerate(ROWS)]}


ONE = {
    **{score: _choosing(score) | {"shown": SHOWN} for score in SCORES},
    "all": {},
    "none": _choosing("none", 0.1) | {"shown": SHOWN},
    "ratio 1": _choosing("soft_or", 1.0),
    "soft_or, 8 micro-batches": _choosing("soft_or") | {"micro_batch": 1},
    "sampled": _choosing("entropy", **SAMPLED),
    "first halves by hand": _first(lambda count: count // 2),
    "horizon of 3": {"sets": ["opd.horizon.tokens=3"], "micro_batch": 2},
    "first 3 by hand": _first(lambda count: 3),
    "first 2, half of them": {"sets": [*_choosing("position")["sets"], "opd.horizon.tokens=2"]},
    "first by hand": _first(lambda count: int(count > 1)),
    "no weight": _weighing(0.0),
    "hardly any": _weighing(1e-30),
    "forward KL": {"sets": ["opd.loss_type=forward_kl"]},
    "first stage": _stages(FORWARD) | {"first_step": 3},
    "second stage": _stages(FORWARD) | {"first_step": 4},
}
TWO = {
    "soft_or": _choosing("soft_or") | {"micro_batch": 1},
    "sampled": _choosing("entropy", **SAMPLED),
    "soft_or, shared sequence": _choosing("soft_or") | {"overrides": ULYSSES},
    "none, shared sequence": {"overrides": ULYSSES},
    "entropy, shared sequence": _choosing("entropy") | {"overrides": ULYSSES},
    "horizon of 3": {"sets": ["opd.horizon.tokens=3"]},
    "horizon of 3, shared sequence": {"sets": ["opd.horizon.tokens=3"], "overrides": ULYSSES},
}


@pytest.fixture(scope="module")
def runs(pair) -> dict:
    case = Case(student=pair["student"], teacher=pair["teacher"], rows=ROWS)
    one = {(1, name): cut(case, **way) for name, way in ONE.items()}
    return run(one | {(2, name): cut(case, **{"micro_batch": 2, "shown": SHOWN} | way) for name, way in TWO.items()})


def test_without_a_choice_an_update_is_what_it_was_to_the_bit(runs):
    check_bits(runs[1, "none"], runs[1, "all"])
    assert runs[1, "none"]["metrics"].keys() == runs[1, "all"]["metrics"].keys()


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((1, "ratio 1"), "all"),
        ((1, "horizon of 3"), "first 3 by hand"),
        ((2, "horizon of 3"), "first 3 by hand"),
        ((2, "horizon of 3, shared sequence"), "first 3 by hand"),
        ((1, "first 2, half of them"), "first by hand"),
        ((1, "position"), "first halves by hand"),
    ],
    ids=str,
)
def test_chosen_tokens_are_trained_as_if_the_others_were_masked(runs, found, wanted):
    of_both = runs[found]["metrics"].keys() & runs[1, wanted]["metrics"].keys()
    check_same(
        runs[found], runs[1, wanted] | {"metrics": {name: runs[1, wanted]["metrics"][name] for name in of_both}}, 1e-4
    )


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((1, "soft_or, 8 micro-batches"), "soft_or"),
        ((2, "soft_or"), "soft_or"),
        ((2, "sampled"), "sampled"),
        ((2, "soft_or, shared sequence"), "soft_or"),
        ((2, "entropy, shared sequence"), "entropy"),
    ],
    ids=str,
)
def test_micro_batches_and_ranks_do_not_change_the_choice(runs, found, wanted):
    check_same(runs[found], runs[1, wanted], 1e-4)


def test_a_row_without_weight_reaches_no_head_and_counts_in_the_divisor(runs):
    found, expected = runs[1, "no weight"], runs[1, "hardly any"]
    assert found["metrics"]["opd/num_tokens"] == expected["metrics"]["opd/num_tokens"] - COUNTS[2]
    assert found["metrics"]["perf/teacher_cache_mb"] < expected["metrics"]["perf/teacher_cache_mb"]
    assert found["metrics"]["opd/loss"] == pytest.approx(expected["metrics"]["opd/loss"], rel=1e-6)
    check_gradients(found, expected["gradients"], 1e-5)


def test_a_stage_trains_what_a_plain_run_of_its_settings_trains(runs):
    check_bits(runs[1, "first stage"], runs[1, "all"])
    check_bits(runs[1, "second stage"], runs[1, "forward KL"])
    assert runs[1, "forward KL"]["metrics"]["opd/loss"] != runs[1, "all"]["metrics"]["opd/loss"]


@pytest.mark.parametrize("score", SCORES)
def test_each_response_trains_half_of_its_tokens_rounded_down(runs, score):
    metrics = runs[1, score]["metrics"]
    num = sum(count // 2 for count in COUNTS)
    assert metrics["opd/num_tokens"] == num
    assert metrics["opd/batch_size"] == sum(count >= 2 for count in COUNTS)
    assert metrics["opd/importance/selected"] == pytest.approx(num / sum(COUNTS))
    assert metrics["opd/importance/rollouts_without"] == sum(count == 1 for count in COUNTS)
    if score in ("random", "position", "entropy"):  # the student chooses before the teacher reads
        cached = num / sum(COUNTS) * runs[1, "all"]["metrics"]["perf/teacher_cache_mb"]
        assert metrics["perf/teacher_cache_mb"] == pytest.approx(cached)


def test_the_choice_follows_its_score(runs):
    every = runs[1, "all"]["metrics"]
    for score, name in (("entropy", "opd/entropy"), ("divergence", "opd/divergence")):
        assert runs[1, score]["metrics"][name] > every[name]
    assert 0.5 < runs[1, "divergence"]["metrics"]["opd/importance/divergence_covered"] <= 1.0
    quadrants = [runs[1, "soft_or"]["metrics"][f"opd/importance/q{i}"] for i in (1, 2, 3, 4)]
    assert math.fsum(quadrants) == pytest.approx(1.0)


def test_without_a_choice_every_trained_token_of_the_rows_is_told_as_the_loss_saw_it(runs):
    seen, metrics = runs[1, "none"]["seen"], runs[1, "none"]["metrics"]
    assert list(seen) == [0, 2, 7]
    for row, view in seen.items():
        assert view.trained.tolist() == [bool(trained) for trained in ROWS[row]["mask"]]
        assert view.kept.all()
        assert not np.isnan([view.entropy, view.divergence]).any()
        tops = view.top_student, view.top_teacher
        assert all((np.diff(top[..., 1]) <= 0).all() and (top[..., 1].sum(-1) <= 1).all() for top in tops)
        assert not np.array_equal(*tops)
        assert (-np.log(view.top_student[:, 0, 1]) <= view.entropy + 1e-5).all(), (
            "the least surprise is at most the mean"
        )
    assert 0 < max(view.divergence.max() for view in seen.values()) <= metrics["opd/divergence_max"] * (1 + 1e-6)


@pytest.mark.parametrize("score", ["soft_or", "divergence", "random", "position", "entropy"])
def test_a_choice_tells_the_tokens_that_it_read_and_which_are_in_the_loss(runs, score):
    seen, every = runs[1, score]["seen"], runs[1, "none"]["seen"]
    reads_teacher = score in ("soft_or", "divergence")
    for row, view in seen.items():
        known = view.kept | reads_teacher
        assert view.kept.sum() == COUNTS[row] // 2
        assert (np.isfinite(view.divergence) == known).all()
        assert (np.isfinite(view.entropy) == (known | (score == "entropy"))).all()
        np.testing.assert_allclose(view.divergence[known], every[row].divergence[known], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(view.entropy[known], every[row].entropy[known], rtol=1e-4)


@pytest.mark.parametrize("case", ["none, shared sequence", "soft_or", "entropy, shared sequence"])
def test_ranks_tell_together_what_one_rank_tells(runs, case):
    found, alone = runs[2, case]["seen"], runs[1, case.partition(",")[0]]["seen"]
    assert found.keys() == alone.keys()
    for row, view in alone.items():
        for name in ("trained", "kept", *VALUES):
            values = getattr(found[row], name), getattr(view, name)
            np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-6, err_msg=name)
