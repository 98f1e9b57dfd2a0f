"""Several teachers through the real worker: each row has the loss and gradient of its own teacher, however the batch is cut."""

import dataclasses

import pytest
import torch
from tests.update.exact import (
    OF_SEVERAL_TEACHERS,
    check,
    check_counts,
    check_gradients,
    cut,
    expected,
    in_all_ways,
    load,
    log_probs,
    reverse_kl,
    run,
)
from tests.update.models import save_model, uneven_rows
from tests.update.workers import Case
from torch import Tensor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CHOSEN = ["opd.importance.tokens.score=divergence", "opd.importance.tokens.ratio=0.5"]
NAMES = ("long", "wide")
# Five rows of the first, three of the other; of two ranks one has four and none, so that it reads rows of no use.
OWN = (0, 0, 0, 0, 1, 0, 1, 1)
ROWS = [row | {"teacher": number} for row, number in zip(uneven_rows(len(OWN)), OWN, strict=True)]


TOP_K = 5
SERVED = {"served": [], "served, sampled": ["opd.loss_type=sampled_reverse_kl"]}


def served(pair: dict[str, str]) -> Case:
    """Return the case whose second teacher by number, the first by name, is served; its rows have its events."""
    model, rows = load(pair["teacher"]), []
    for row in ROWS:
        found = log_probs(model, row["prompt"], row["response"]).detach()[: len(row["response"]) * row["teacher"]]
        ids = torch.cat([torch.tensor(row["response"])[: len(found), None], found.topk(TOP_K).indices], 1)
        rows.append(row | {"events": (ids.int(), found.gather(1, ids).float())})
    sets = ["teachers.long.url=http://teacher:8000/v1", f"teachers.long.top_k={TOP_K}"]
    return Case(
        student=pair["student"],
        teacher="",
        teachers={"wide": pair["wide"], "long": pair["teacher"]},
        rows=rows,
        sets=sets,
    )


def of_events(row: dict, own: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """Return the reverse KL, of a served teacher's rows over its likeliest tokens and one event more."""
    if row["teacher"]:
        best = wanted.topk(TOP_K).indices
        own, wanted = (side.gather(1, best) for side in (own, wanted))
        own, wanted = (torch.cat([side, (1 - side.exp().sum(1, True)).log()], 1) for side in (own, wanted))
    return reverse_kl(row, own, wanted)


def of_sampled(row: dict, own: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """Return the sampled token's log ratio, with a baseline where all tokens of the teacher are known."""
    baseline = 0.0 if row["teacher"] else reverse_kl(row, own, wanted)["opd/divergence"]
    own, wanted = (side.gather(1, torch.tensor(row["response"])[:, None])[:, 0] for side in (own, wanted))
    value = (own - wanted).detach()
    return {"opd/loss": row["weight"] * (value + (value - baseline) * (own - own.detach())), "opd/divergence": value}


@pytest.fixture(scope="module")
def case(pair) -> Case:
    return Case(
        student=pair["student"], teacher="", teachers={"long": pair["teacher"], "wide": pair["wide"]}, rows=ROWS
    )


@pytest.fixture(scope="module")
def runs(case, pair, tmp_path_factory) -> dict:
    other = save_model(tmp_path_factory.mktemp("other"), hidden=48, layers=1, rows=96, tied=False, seed=4)
    long = case.teachers["long"]
    first_only = [row | {"weight": row["weight"] * (row["teacher"] == 0)} for row in ROWS]
    alone = dataclasses.replace(case, teachers={}, teacher=long, rows=[row | {"teacher": 0} for row in ROWS])
    return run(
        in_all_ways(case)
        | {
            (1, "first only"): cut(case, rows=first_only),
            (1, "first only, another second"): cut(case, rows=first_only, teachers={"long": long, "wide": other}),
            (1, "both the same"): cut(case, teachers={"long": long, "wide": long}, num_steps=2),
            (1, "long alone"): cut(alone, num_steps=2),
            **{(world, "chosen"): cut(case, sets=CHOSEN, micro_batch=2) for world in (1, 2)},
            **{(2, name): cut(served(pair), sets=sets, micro_batch=2) for name, sets in SERVED.items()},
            (1, "served, chosen"): cut(served(pair), sets=CHOSEN),
        }
    )


@pytest.fixture(scope="module")
def reference(case) -> dict:
    """The loss of all rows, with the divergence, tokens and rows of each teacher."""
    whole = expected(case)
    for number, (name, path) in enumerate(case.teachers.items()):
        rows = [row | {"teacher": 0} for row in ROWS if row["teacher"] == number]
        mean = expected(Case(student=case.student, teacher=path, rows=rows))["metrics"]["opd/divergence"]
        counts = {"divergence": mean, "tokens": sum(sum(row["mask"]) for row in rows)}
        counts["rows"] = sum(any(row["mask"]) for row in rows)
        whole["metrics"] |= {f"opd/teacher/{name}/{of}": value for of, value in counts.items()}
    return whole


@pytest.mark.parametrize("way", OF_SEVERAL_TEACHERS, ids=str)
def test_loss_gradient_and_metrics_are_those_of_each_rows_own_teacher(reference, runs, way):
    check(runs[way], reference)


def test_rows_of_weight_zero_reach_no_head_and_their_teacher_changes_no_gradient(runs):
    one, other = runs[1, "first only"], runs[1, "first only, another second"]
    assert one["metrics"]["opd/teacher/wide/divergence"] == other["metrics"]["opd/teacher/wide/divergence"] == 0.0
    check_gradients(one, other["gradients"], 0.0)


def test_two_teachers_of_one_model_train_as_one_does(runs):
    found, alone = runs[1, "both the same"], runs[1, "long alone"]
    check_counts(found, alone, 1e-4)
    assert found["metrics"]["opd/teacher_pairs"] == alone["metrics"]["opd/teacher_pairs"]


@pytest.mark.parametrize(("name", "of_row"), zip(SERVED, (of_events, of_sampled), strict=True))
def test_rows_of_a_served_teacher_have_the_loss_of_its_events_next_to_those_of_the_ranks_teacher(
    name, of_row, pair, runs
):
    found = runs[2, name]
    check(found, expected(served(pair), of_row))
    counts = [found["metrics"][f"opd/teacher/{teacher}/rows"] for teacher in ("wide", "long")]
    assert counts == [sum(any(row["mask"]) for row in ROWS if row["teacher"] == number) for number in (0, 1)]


@pytest.mark.parametrize("way", ["chosen", "served, chosen"])
def test_tokens_are_chosen_among_those_of_all_teachers(runs, way):
    found, every = runs[1, way]["metrics"], runs[1, "all"]["metrics"]
    assert found["opd/num_tokens"] == sum(found[f"opd/teacher/{name}/tokens"] for name in NAMES)
    assert found["opd/num_tokens"] < every["opd/num_tokens"]
    if way == "chosen":
        assert all(found[key] > every[key] for key in (f"opd/teacher/{name}/divergence" for name in NAMES))
        check_counts(runs[2, "chosen"], runs[1, "chosen"])


def test_each_teacher_waits_on_the_host_but_in_its_own_pass(runs):
    assert runs[1, "all"]["places"]["student"]["teacher"] == "offloaded"
    assert runs[1, "all"]["places"]["done"]["teacher"] == "offloaded"
