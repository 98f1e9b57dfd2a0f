"""A matrix becomes plain specs with deterministic names."""

from __future__ import annotations

import time

import pytest

from opd.config import SpecError
from opdctl.chart import sweep


def expand(tree: dict, *, origin: str) -> list[dict]:
    return sweep.expand(tree, origin=origin, name_of=lambda cell: "unnamed")


def test_a_spec_without_a_matrix_stays_as_it_is() -> None:
    assert expand({"name": "a", "seed": 1}, origin="x") == [{"name": "a", "seed": 1}]


def test_a_lone_expression_keeps_its_type_and_a_text_stays_a_text() -> None:
    tree = {
        "kind": "opd",
        "name": "lr-{{ matrix.lr }}-s{{ matrix.seed }}",
        "seed": "{{ matrix.seed }}",
        "actor": {"learning_rate": "{{ matrix.lr }}"},
        "note": "{{ matrix.time }}",
        "matrix": {"lr": [1e-6, 3e-6], "seed": [1, 2], "time": ["1:30"]},
    }
    cells = expand(tree, origin="x")
    assert [cell["name"] for cell in cells] == ["lr-1e-06-s1", "lr-1e-06-s2", "lr-3e-06-s1", "lr-3e-06-s2"]
    assert cells[2]["actor"]["learning_rate"] == 3e-6
    assert cells[1]["seed"] == 2
    assert cells[0]["note"] == "1:30"
    assert all("matrix" not in cell for cell in cells)


def test_expressions_compute() -> None:
    tree = {"kind": "opd", "seed": "{{ matrix.seed * 10 + 1 }}", "matrix": {"seed": [1, 2]}}
    assert [cell["seed"] for cell in expand(tree, origin="x")] == [11, 21]


def test_a_plain_name_gets_the_cell_behind_it_and_a_long_one_a_hash_that_does_not_change() -> None:
    assert [cell["name"] for cell in expand({"kind": "opd", "name": "run", "matrix": {"seed": [1, 2]}}, origin="x")] == ["run-seed-1", "run-seed-2"]  # fmt: skip
    tree = {
        "kind": "opd",
        "name": "a-rather-long-name-of-an-experiment",
        "matrix": {"actor.learning_rate": [1e-6, 2e-6]},
    }
    names = [cell["name"] for cell in expand(tree, origin="x")]
    assert names == [cell["name"] for cell in expand(tree, origin="x")]
    assert len(set(names)) == 2
    assert all(len(name) <= 47 for name in names)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"seed": "{{ matrix.sed }}", "matrix": {"seed": [1]}}, "seed"),
        ({"actor": {"x": "{{ 1 + }}"}, "matrix": {"seed": [1]}}, "actor.x"),
        ({"seed": "{{ seed }}", "matrix": {"seed": [1]}}, "seed"),
        ({"seed": "{{ ''.__class__.__mro__ }}", "matrix": {"seed": [1]}}, "seed"),
        ({"name": "same{{ '' }}", "matrix": {"seed": [1, 2]}}, "name"),
        ({"matrix": {"seed": []}}, "matrix.seed"),
        ({"matrix": [1, 2]}, "matrix"),
        ({"matrix": {"a": list(range(100)), "b": list(range(100))}}, "matrix"),
    ],
)
def test_a_bad_sweep_is_a_spec_error_that_names_the_key(tree: dict, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand({"kind": "opd", **tree}, origin="exp.yaml")
    assert caught.value.problems[0].path == path


def test_a_key_of_the_spec_is_set_by_its_dotted_path_in_every_cell() -> None:
    tree = {
        "kind": "opd",
        "name": "a",
        "opd": {"chunk_size": 64},
        "matrix": {"opd.loss_type": ["reverse_kl", "jsd"], "seed": [1, 2]},
    }
    cells = expand(tree, origin="x")
    assert [(cell["opd"]["loss_type"], cell["seed"]) for cell in cells] == [
        ("reverse_kl", 1), ("reverse_kl", 2), ("jsd", 1), ("jsd", 2)
    ]  # fmt: skip
    assert [cell["name"] for cell in cells][::3] == ["a-loss-type-reverse-kl-seed-1", "a-loss-type-jsd-seed-2"]
    assert all(cell["opd"]["chunk_size"] == 64 for cell in cells)
    assert tree["opd"] == {"chunk_size": 64}, "the file's own tree stays as it was"


def test_an_expression_at_the_key_s_own_place_counts_and_one_elsewhere_sees_the_dotted_key() -> None:
    tree = {
        "kind": "opd",
        "name": "{{ matrix.opd.loss_type }}-{{ matrix['seed'] }}",
        "seed": "{{ matrix.seed + 100 }}",
        "matrix": {"opd.loss_type": ["jsd"], "seed": [1]},
    }
    [cell] = expand(tree, origin="x")
    assert (cell["name"], cell["seed"], cell["opd"]["loss_type"]) == ("jsd-1", 101, "jsd")


@pytest.mark.parametrize(
    ("matrix", "more", "fix"),
    [
        ({"lr": [1, 2]}, {}, "matrix.lr"),
        ({"lr": [1, 2]}, {"name": "run-{{ matrix.lr }}"}, "matrix.lr"),
        ({"loss_type": ["jsd"]}, {}, "opd.loss_type"),
        ({"teacher": ["a", "b"]}, {"teacher": {"path": "a"}}, "matrix.teacher"),
        ({"recipe": ["grpo", "grpo-native"]}, {}, "matrix.recipe"),
    ],
)
def test_a_key_that_nothing_uses_is_refused_and_the_fix_is_named(matrix: dict, more: dict, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand({"kind": "opd", "name": "a", **more, "matrix": matrix}, origin="exp.yaml")
    [problem] = caught.value.problems
    assert problem.path == f"matrix.{next(iter(matrix))}"
    assert "nothing uses this key" in problem.rule
    assert fix in problem.fix


@pytest.mark.parametrize(
    "expression",
    [
        "1/0",
        "9**(9**9)",
        "2.0**99999",
        "'x'*10**9",
        "range(10**9)",
        "range(10**9)|list",
        "'%0999999999d' % 1",
        "1|round(10**9, 'ceil')",
        "('x'*1000)|replace('x', 'y'*1000)|replace('y', 'z'*1000)",
        "(-8)**0.5",
        "[1, 2]",
        "matrix.clear()",
        "matrix.seed.__class__",
        "lipsum(10**6)",
        "(" * 3000 + "1" + ")" * 3000,
    ],
)
def test_an_expression_without_end_or_sense_is_one_quick_error_and_changes_no_cell(expression: str) -> None:
    tree = {"kind": "opd", "name": "a", "data": {"dir": "{{ " + expression + " }}"}, "matrix": {"seed": [1, 2]}}
    began = time.process_time()
    with pytest.raises(SpecError) as caught:
        expand(tree, origin="exp.yaml")
    assert time.process_time() - began < 2
    assert [problem.path for problem in caught.value.problems] == ["data.dir"]
    assert "the expression fails" in caught.value.problems[0].rule
    assert tree["matrix"] == {"seed": [1, 2]}


def test_a_loop_in_a_text_is_refused() -> None:
    text = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    with pytest.raises(SpecError, match="for is not among"):
        expand({"kind": "opd", "data": {"dir": text}, "matrix": {"seed": [1]}}, origin="x")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("matrix.m.split('/')[-1] | lower", "qwen3-8b"),
        ("'%02d' % matrix.seed", "07"),
        ("matrix.seed if matrix.m == 'x' else -1", -1),
        ("matrix.lr * 3", 3e-6),
    ],
)
def test_what_people_compute_in_a_sweep_works(expression: str, value: object) -> None:
    matrix = {"m": ["Qwen/Qwen3-8B"], "seed": [7], "lr": [1e-6]}
    tree = {"kind": "opd", "note": "{{ " + expression + " }}", "all": "{{ matrix.m }}{{ matrix.lr }}", "matrix": matrix}
    assert expand(tree, origin="x")[0]["note"] == value
