"""Training on chosen tokens through the real worker: the same tokens, loss and gradient however the batch is cut."""

from __future__ import annotations

import math

import pytest
import torch
from tests.worker.batches import uneven_rows
from tests.worker.models import save_model
from tests.worker.workers import Case, run_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOKENS = "opd.importance.tokens"
SCORES = ["random", "position", "entropy", "divergence", "soft_or", "q3"]
READ_BY_HEAD = ["entropy", "divergence"]  # whose order no scale changes: a micro-batch's choice is that of all
SHARED_VOCABULARY = ["opd.vocab_parallel_size=2", "opd.chunk_size=6"]
SHARED_SEQUENCE = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"


def _choosing(score: str, ratio: float = 0.5, **more: object) -> list[str]:
    options = {"score": score, "ratio": ratio, **more}
    return [f"{TOKENS}.{name}={value}" for name, value in options.items()]


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

    cases = {score: case(_choosing(score)) for score in SCORES}
    cases |= {
        f"{score}, in the head": case(_choosing(score, normalize="micro"), micro_batch=2)
        for score in [*READ_BY_HEAD, "soft_or"]
    }
    cases |= {
        "all": case([]),
        "none": case(_choosing("none", 0.1)),
        "ratio 1": case(_choosing("soft_or", 1.0)),
        "ratio 0": case(_choosing("entropy", 0.0)),
        "soft_or, 8 micro-batches": case(_choosing("soft_or"), micro_batch=1),
        "sampled": case(_choosing("entropy", mode="sample", scope="batch")),
        "2 mini-batches": case(_choosing("soft_or"), mini_batch=4, micro_batch=2),
        "first halves by hand": case([], rows=[_half(row) for row in uneven_rows()]),
        "nan from the teacher": case(_choosing("soft_or", 0.1), nan_teacher=True),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    def case(*overrides, micro_batch=2) -> Case:
        return Case(**folders, rows=uneven_rows(), overrides=list(overrides), micro_batch=micro_batch)

    in_head = _choosing("entropy", normalize="micro")
    cases = {
        "soft_or": case(*_choosing("soft_or"), micro_batch=1),
        "sampled": case(*_choosing("entropy", mode="sample", scope="batch")),
        "soft_or, shared vocabulary": case(*_choosing("soft_or"), *SHARED_VOCABULARY),
        "soft_or, shared sequence": case(*_choosing("soft_or"), SHARED_SEQUENCE),
        "entropy, shared sequence": case(*_choosing("entropy"), SHARED_SEQUENCE),
        "entropy, in the head": case(*in_head),
        "in the head, shared sequence": case(*in_head, SHARED_SEQUENCE),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _same(result: dict, reference: dict) -> None:
    for key, value in reference["metrics"].items():
        if not key.startswith(("timing/", "perf/")) and key in result["metrics"]:
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


def test_a_choice_of_no_token_is_a_zero_loss_and_a_finite_step(one_rank):
    metrics = one_rank["ratio 0"]["metrics"]
    assert metrics["opd/num_tokens"] == metrics["opd/loss"] == metrics["opd/grad_norm"] == 0
    assert metrics["opd/skipped"] == 0


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


@pytest.mark.parametrize("case", ["soft_or, shared vocabulary", "soft_or, shared sequence", "entropy, shared sequence"])
def test_ranks_that_share_sequences_or_vocabulary_choose_alike(one_rank, two_ranks, case):
    _same(two_ranks[case], one_rank[case.partition(",")[0]])


@pytest.mark.parametrize("score", READ_BY_HEAD)
def test_a_choice_in_the_head_is_that_of_the_whole_batch_where_no_scale_matters(one_rank, score):
    _same(one_rank[f"{score}, in the head"], one_rank[score])


def test_ranks_do_not_change_a_choice_in_the_head(one_rank, two_ranks):
    _same(two_ranks["entropy, in the head"], one_rank["entropy"])


def test_a_choice_in_the_head_trains_as_many_tokens_and_reports_its_share(one_rank):
    in_head, of_all = one_rank["soft_or, in the head"]["metrics"], one_rank["soft_or"]["metrics"]
    for name in ("opd/num_tokens", "opd/batch_size", "opd/importance/selected"):
        assert in_head[name] == of_all[name], name
    assert in_head["opd/importance/selected"] < in_head["opd/importance/divergence_covered"] <= 1.0


def test_tokens_are_chosen_once_a_step_for_all_its_updates(one_rank):
    once, twice = one_rank["soft_or"]["metrics"], one_rank["2 mini-batches"]["metrics"]
    assert twice["opd/num_updates"] == 2
    assert twice["opd/num_tokens"] == once["opd/num_tokens"]
    assert twice["opd/importance/divergence_covered"] == pytest.approx(once["opd/importance/divergence_covered"])


def test_a_token_that_is_not_finite_is_chosen_and_skips_the_update(one_rank):
    result = one_rank["nan from the teacher"]
    assert not result["has_moved"]
    assert result["metrics"]["opd/skipped"] == 1
    assert any(result["nonfinite_rows"])


def test_ranks_that_share_sequences_cannot_choose_in_the_head(two_ranks):
    assert "normalize=micro" in two_ranks["in the head, shared sequence"]["error"]
