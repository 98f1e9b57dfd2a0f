"""Several teachers through the real worker: each row has the loss and gradient of its own teacher, however the batch is cut."""

import dataclasses

import pytest
from tests.update.exact import (
    OF_SEVERAL_TEACHERS,
    check,
    check_counts,
    check_gradients,
    cut,
    expected,
    in_all_ways,
    run,
)
from tests.update.models import save_model, uneven_rows
from tests.update.workers import Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CHOSEN = ["opd.importance.tokens.score=divergence", "opd.importance.tokens.ratio=0.5"]
NAMES = ("long", "wide")
# Five rows of the first, three of the other; of two ranks one has four and none, so that it reads rows of no use.
OWN = (0, 0, 0, 0, 1, 0, 1, 1)
ROWS = [row | {"teacher": number} for row, number in zip(uneven_rows(len(OWN)), OWN, strict=True)]


@pytest.fixture(scope="module")
def case(pair) -> Case:
    return Case(
        student=pair["student"], teacher="", teachers={"long": pair["teacher"], "wide": pair["wide"]}, rows=ROWS
    )


@pytest.fixture(scope="module")
def runs(case, tmp_path_factory) -> dict:
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


def test_tokens_are_chosen_among_those_of_all_teachers(runs):
    found, every = runs[1, "chosen"]["metrics"], runs[1, "all"]["metrics"]
    assert found["opd/num_tokens"] == sum(found[f"opd/teacher/{name}/tokens"] for name in NAMES)
    assert found["opd/num_tokens"] < every["opd/num_tokens"]
    assert all(found[key] > every[key] for key in (f"opd/teacher/{name}/divergence" for name in NAMES))
    check_counts(runs[2, "chosen"], runs[1, "chosen"])


def test_each_teacher_waits_on_the_host_but_in_its_own_pass(runs):
    assert runs[1, "all"]["places"]["student"]["teacher"] == "offloaded"
    assert runs[1, "all"]["places"]["done"]["teacher"] == "offloaded"
