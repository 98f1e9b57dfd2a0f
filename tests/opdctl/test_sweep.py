"""A matrix becomes plain specs with deterministic names."""

from __future__ import annotations

import pytest

from opd.spec import SpecError
from opdctl.sweep import expand


def test_a_spec_without_a_matrix_stays_as_it_is() -> None:
    assert expand({"name": "a", "seed": 1}, origin="x") == [{"name": "a", "seed": 1}]


def test_a_lone_expression_keeps_its_type_and_a_text_stays_a_text() -> None:
    tree = {
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
    tree = {"seed": "{{ matrix.seed * 10 + 1 }}", "matrix": {"seed": [1, 2]}}
    assert [cell["seed"] for cell in expand(tree, origin="x")] == [11, 21]


def test_a_plain_name_gets_the_cell_behind_it_and_a_long_one_a_hash_that_does_not_change() -> None:
    assert [cell["name"] for cell in expand({"name": "run", "matrix": {"seed": [1, 2]}}, origin="x")] == ["run-seed-1", "run-seed-2"]  # fmt: skip
    tree = {"name": "a-rather-long-name-of-an-experiment", "matrix": {"learning_rate": [1e-6, 2e-6]}}
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
        expand(tree, origin="exp.yaml")
    assert caught.value.problems[0].path == path
