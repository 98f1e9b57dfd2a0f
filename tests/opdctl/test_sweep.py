"""A matrix becomes plain specs with deterministic names."""

from __future__ import annotations

import pytest

from opd.config import SpecError
from opdctl.chart import sweep


def expand(tree: dict, *, origin: str) -> list[dict]:
    return sweep.expand(tree, origin=origin, name_of=lambda cell: "unnamed")


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
        ({"name": "same", "matrix": {"seed": [1, 1]}}, "matrix"),
        ({"matrix": {"seed": []}}, "matrix.seed"),
        ({"matrix": [1, 2]}, "matrix"),
        ({"matrix": {"seed": list(range(100)), "opd.beta": list(range(100))}}, "matrix"),
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


@pytest.mark.parametrize(("key", "fix"), [("lr", ""), ("loss_type", "opd.loss_type"), ("recipe", "")])
def test_a_key_that_is_none_of_the_spec_is_refused_and_the_nearest_named(key: str, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand({"kind": "opd", "name": "a", "matrix": {key: [1, 2]}}, origin="exp.yaml")
    [problem] = caught.value.problems
    assert problem.path == f"matrix.{key}"
    assert fix in problem.fix
