"""Training on chosen tokens through the real worker: the same tokens, loss and gradient however the batch is cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import save_model
from tests.update.workers import NOT_COMPARED, Case, run_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOKENS = "opd.importance.tokens"
SCORES = ["random", "position", "entropy", "divergence", "soft_or", "q3"]
SHOWN = (0, 2, 5, 7)  # of which 5 has no trained token
_PLAIN_ADAM = ["actor.weight_decay=0", "actor.grad_clip=1e9"]
SHARED_SEQUENCE = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"


def _choosing(score: str, ratio: float = 0.5, **more: object) -> list[str]:
    options = {"score": score, "ratio": ratio, **more}
    return [f"{TOKENS}.{name}={value}" for name, value in options.items()]


def _stages(*stages: str) -> list[str]:
    return [f"opd.stages=[{', '.join(stages)}]"]


def _cut(row: dict, place: slice) -> dict:
    """The row with only these of its trained tokens."""
    places = [i for i, trained in enumerate(row["mask"]) if trained][place]
    return row | {"mask": [int(i in places) for i in range(len(row["mask"]))]}


def _half(row: dict) -> dict:
    """The row with only the first half of its trained tokens, rounded down."""
    places = [i for i, trained in enumerate(row["mask"]) if trained]
    kept = places[: len(places) // 2]
    return row | {"mask": [int(i in kept) for i in range(len(row["mask"]))]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    sizes = {"student": {"hidden": 32, "rows": 64, "seed": 1}, "teacher": {"hidden": 48, "rows": 96, "seed": 2}}
    return {role: save_model(base / role, layers=2, tied=False, **size) for role, size in sizes.items()}


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    def case(overrides, rows=None, **cut) -> Case:
        return Case(**folders, rows=uneven_rows() if rows is None else rows, overrides=overrides, **cut)

    cases = {score: case(_choosing(score), shown=SHOWN) for score in SCORES}
    cases |= {
        "all": case([]),
        "none": case(_choosing("none", 0.1), shown=SHOWN),
        "ratio 1": case(_choosing("soft_or", 1.0)),
        "soft_or, 8 micro-batches": case(_choosing("soft_or"), micro_batch=1),
        "sampled": case(_choosing("entropy", mode="sample", scope="batch")),
        "first halves by hand": case([], rows=[_half(row) for row in uneven_rows()]),
        "horizon of 3": case([], sets=["opd.horizon.tokens=3"], micro_batch=2),
        "first 3 by hand": case([], rows=[_cut(row, slice(3)) for row in uneven_rows()]),
        "first 2, half of them": case(_choosing("position"), sets=["opd.horizon.tokens=2"]),
        "first by hand": case([], rows=[_cut(row, slice(1 if sum(row["mask"]) > 1 else 0)) for row in uneven_rows()]),
        "grown horizon": case([], sets=["opd.horizon.tokens=3", "opd.horizon.grow_until=4"], first_step=4),
        "no weight": case([], rows=[row | {"weight": 0.0 if i == 2 else 1.0} for i, row in enumerate(uneven_rows())]),
        "hardly any": case(
            [], rows=[row | {"weight": 1e-30 if i == 2 else 1.0} for i, row in enumerate(uneven_rows())]
        ),
        "forward KL": case([], sets=["opd.loss_type=forward_kl"]),
        "first stage": case([], sets=_stages("{until: 3}", "{loss_type: forward_kl}"), first_step=3),
        "second stage": case([], sets=_stages("{until: 3}", "{loss_type: forward_kl}"), first_step=4),
        "optimizer kept": case([], sets=[*_stages("{until: 1}", "{}"), *_PLAIN_ADAM], first_step=1, num_steps=2),
        "optimizer reset": case(
            [], sets=[*_stages("{until: 1}", "{optimizer: reset}"), *_PLAIN_ADAM], first_step=1, num_steps=2
        ),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    def case(*overrides, rows=None, shown=SHOWN, micro_batch=2) -> Case:
        rows = uneven_rows() if rows is None else rows
        return Case(**folders, rows=rows, overrides=list(overrides), micro_batch=micro_batch, shown=shown)

    cases = {
        "soft_or": case(*_choosing("soft_or"), micro_batch=1),
        "sampled": case(*_choosing("entropy", mode="sample", scope="batch")),
        "soft_or, shared sequence": case(*_choosing("soft_or"), SHARED_SEQUENCE),
        "none, shared sequence": case(SHARED_SEQUENCE),
        "entropy, shared sequence": case(*_choosing("entropy"), SHARED_SEQUENCE),
        "horizon of 3": case("opd.horizon.tokens=3"),
        "horizon of 3, shared sequence": case("opd.horizon.tokens=3", SHARED_SEQUENCE),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _same(result: dict, reference: dict) -> None:
    for key, value in reference["metrics"].items():
        if not key.startswith(("timing/", "perf/", *NOT_COMPARED)) and key in result["metrics"]:
            assert result["metrics"][key] == pytest.approx(value, rel=1e-4, abs=1e-7, nan_ok=True), key
    for key, gradient in reference["gradients"].items():
        error = float((result["gradients"][key] - gradient).norm() / gradient.norm().clamp_min(1e-12))
        assert error < 1e-4, f"{key}: relative error {error:.1e}"


def _identical(result: dict, reference: dict) -> None:
    for key, weight in reference["weights"].items():
        assert torch.equal(result["weights"][key], weight), key


def test_without_a_choice_an_update_is_what_it_was_to_the_bit(one_rank):
    _identical(one_rank["none"], one_rank["all"])
    assert one_rank["none"]["metrics"].keys() == one_rank["all"]["metrics"].keys()


def test_a_choice_of_all_tokens_trains_what_no_choice_trains(one_rank):
    _same(one_rank["ratio 1"], one_rank["all"])
    assert one_rank["ratio 1"]["metrics"]["opd/importance/selected"] == 1.0


def test_tokens_beyond_the_horizon_are_left_out_as_if_they_were_masked(one_rank, two_ranks):
    by_hand = one_rank["first 3 by hand"]
    assert by_hand["metrics"]["opd/num_tokens"] == sum(min(sum(row["mask"]), 3) for row in uneven_rows())
    for result in (one_rank["horizon of 3"], two_ranks["horizon of 3"], two_ranks["horizon of 3, shared sequence"]):
        _same(result, by_hand)


def test_tokens_are_chosen_among_those_within_the_horizon(one_rank):
    _same(one_rank["first 2, half of them"], one_rank["first by hand"])


def test_a_row_without_weight_reaches_no_head_and_counts_in_the_divisor(one_rank):
    found, expected = one_rank["no weight"], one_rank["hardly any"]
    tokens = sum(uneven_rows()[2]["mask"])
    assert found["metrics"]["opd/num_tokens"] == expected["metrics"]["opd/num_tokens"] - tokens
    assert found["metrics"]["perf/teacher_cache_mb"] < expected["metrics"]["perf/teacher_cache_mb"]
    assert found["metrics"]["opd/loss"] == pytest.approx(expected["metrics"]["opd/loss"], rel=1e-6)
    for key, gradient in expected["gradients"].items():
        assert (found["gradients"][key] - gradient).norm() <= 1e-5 * gradient.norm(), key


def test_a_horizon_that_has_grown_to_whole_responses_and_the_first_stage_train_what_a_plain_run_trains(one_rank):
    _identical(one_rank["grown horizon"], one_rank["all"])
    _identical(one_rank["first stage"], one_rank["all"])


def test_a_later_stage_trains_its_own_divergence(one_rank):
    _identical(one_rank["second stage"], one_rank["forward KL"])
    assert one_rank["forward KL"]["metrics"]["opd/loss"] != one_rank["all"]["metrics"]["opd/loss"]


def test_a_stage_that_resets_the_optimizer_takes_adams_first_step_from_where_the_weights_are(one_rank):
    reset, kept = one_rank["optimizer reset"], one_rank["optimizer kept"]
    for name, gradient in reset["gradients"].items():
        assert torch.equal(reset["weights_before"][name], kept["weights_before"][name])
        # With moments at zero the bias-corrected step is lr g / (|g| + eps).
        expected = reset["weights_before"][name] - 1e-3 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(reset["weights"][name], expected, rtol=0, atol=2e-6)
    assert any(not torch.equal(weight, kept["weights"][name]) for name, weight in reset["weights"].items())


def test_chosen_tokens_are_trained_as_if_the_others_were_masked(one_rank):
    _same(one_rank["position"], one_rank["first halves by hand"])


@pytest.mark.parametrize("score", SCORES)
def test_each_response_trains_half_of_its_tokens_rounded_down(one_rank, score):
    counts = [sum(row["mask"]) for row in uneven_rows()]
    metrics = one_rank[score]["metrics"]
    assert metrics["opd/num_tokens"] == sum(count // 2 for count in counts)
    assert metrics["opd/batch_size"] == sum(count >= 2 for count in counts)
    assert metrics["opd/importance/selected"] == pytest.approx(sum(c // 2 for c in counts) / sum(counts))
    assert metrics["opd/importance/rollouts_without"] == sum(count == 1 for count in counts)


def test_the_choice_follows_its_score(one_rank):
    every = one_rank["all"]["metrics"]
    for score, name in (("entropy", "opd/entropy"), ("divergence", "opd/divergence")):
        assert one_rank[score]["metrics"][name] > every[name]
    covered = {score: one_rank[score]["metrics"]["opd/importance/divergence_covered"] for score in ("divergence", "q3")}
    assert 0.5 < covered["divergence"] <= 1.0
    quadrants = [one_rank["soft_or"]["metrics"][f"opd/importance/q{i}"] for i in (1, 2, 3, 4)]
    assert math.fsum(quadrants) == pytest.approx(1.0)


def test_the_teachers_hidden_states_are_made_for_chosen_tokens_only_where_the_student_chooses(one_rank):
    whole = one_rank["all"]["metrics"]
    for score in ("random", "position", "entropy"):
        metrics = one_rank[score]["metrics"]
        share = metrics["opd/num_tokens"] / whole["opd/num_tokens"]
        assert metrics["perf/teacher_cache_mb"] == pytest.approx(share * whole["perf/teacher_cache_mb"])


def test_micro_batches_do_not_change_the_choice(one_rank):
    _same(one_rank["soft_or, 8 micro-batches"], one_rank["soft_or"])


@pytest.mark.parametrize("case", ["soft_or", "sampled"])
def test_ranks_change_neither_the_choice_nor_what_is_drawn_from_all_responses_together(one_rank, two_ranks, case):
    _same(two_ranks[case], one_rank[case])


@pytest.mark.parametrize("case", ["soft_or, shared sequence", "entropy, shared sequence"])
def test_ranks_that_share_sequences_choose_alike(one_rank, two_ranks, case):
    _same(two_ranks[case], one_rank[case.partition(",")[0]])


def _all_known(view) -> bool:
    return not np.isnan([view.entropy, view.divergence]).any()


def test_without_a_choice_every_trained_token_of_the_rows_is_told_as_the_loss_saw_it(one_rank):
    seen, metrics = one_rank["none"]["seen"], one_rank["none"]["metrics"]
    rows = uneven_rows()
    assert list(seen.rows) == [0, 2, 7]
    for row, view in seen.rows.items():
        assert view.trained.tolist() == [bool(trained) for trained in rows[row]["mask"]]
        assert view.kept.all()
        assert _all_known(view)
    assert seen.covers_all
    assert seen.density.sum(axis=(0, 1)).tolist() == [metrics["opd/num_tokens"]] * 2
    assert 0 < max(view.divergence.max() for view in seen.rows.values()) <= metrics["opd/divergence_max"] * (1 + 1e-6)


@pytest.mark.parametrize("case", ["soft_or", "divergence"])
def test_a_choice_by_both_tells_all_tokens_and_which_are_in_the_loss(one_rank, case):
    seen, every = one_rank[case]["seen"], one_rank["none"]["seen"]
    counts = {row: sum(uneven_rows()[row]["mask"]) for row in seen.rows}
    for row, view in seen.rows.items():
        np.testing.assert_allclose(view.entropy, every.rows[row].entropy, rtol=1e-4)
        np.testing.assert_allclose(view.divergence, every.rows[row].divergence, rtol=1e-4, atol=1e-6)
        assert view.kept.sum() == counts[row] // 2
    assert seen.covers_all
    assert seen.density[..., 0].sum() == every.density[..., 0].sum()
    assert seen.density[..., 1].sum() == one_rank[case]["metrics"]["opd/num_tokens"]


@pytest.mark.parametrize("case", ["random", "position", "entropy"])
def test_of_a_choice_that_reads_no_teacher_divergences_are_told_of_the_tokens_in_the_loss(one_rank, case):
    seen, every = one_rank[case]["seen"], one_rank["none"]["seen"]
    for row, view in seen.rows.items():
        assert (np.isfinite(view.divergence) == view.kept).all()
        assert (np.isfinite(view.entropy) == (view.kept | ("entropy" in case))).all()
        known = every.rows[row].divergence[view.kept]
        np.testing.assert_allclose(view.divergence[view.kept], known, rtol=1e-4, atol=1e-6)
    assert not seen.covers_all
    assert seen.density.sum(axis=(0, 1)).tolist() == [one_rank[case]["metrics"]["opd/num_tokens"]] * 2


@pytest.mark.parametrize(
    "case",
    ["none, shared sequence", "soft_or", "soft_or, shared sequence", "entropy, shared sequence"],
)
def test_ranks_tell_together_what_one_rank_tells(one_rank, two_ranks, case):
    found, alone = two_ranks[case]["seen"], one_rank[case.partition(",")[0]]["seen"]
    assert found.rows.keys() == alone.rows.keys()
    for row, view in alone.rows.items():
        for name in ("trained", "kept", "entropy", "divergence"):
            np.testing.assert_allclose(
                getattr(found.rows[row], name), getattr(view, name), rtol=1e-4, atol=1e-6, err_msg=name
            )
    assert found.covers_all == alone.covers_all
    assert found.density.sum(axis=(0, 1)).tolist() == alone.density.sum(axis=(0, 1)).tolist()
