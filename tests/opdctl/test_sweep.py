"""A matrix becomes plain experiments with deterministic names."""

import json
from pathlib import Path
from typing import Any

import pytest

from opd.experiment import SpecError
from opdctl.chart.values import Experiment, load_experiments

BASE: dict[str, Any] = {"kind": "opd", "name": "run", "model": {"path": "m"}, "teacher": {"path": "t"}}


def expand(
    folder: Path, *, env: dict[str, str] | None = None, sets: tuple[str, ...] = (), **more: Any
) -> list[Experiment]:
    (folder / "exp.json").write_text(json.dumps(BASE | more))
    return load_experiments(folder / "exp.json", env=env or {}, sets=sets)


def test_a_name_gets_its_cell_and_a_long_one_a_hash_that_does_not_change(tmp_path: Path) -> None:
    assert [cell.run_id for cell in expand(tmp_path, matrix={"seed": [1, 2]})] == ["run-seed-1", "run-seed-2"]
    long = {"name": "a-rather-long-name-of-an-experiment", "matrix": {"actor.learning_rate": [1e-6, 2e-6]}}
    names = [cell.run_id for cell in expand(tmp_path, **long)]
    assert names == [cell.run_id for cell in expand(tmp_path, **long)]
    assert len(set(names)) == 2
    assert all(len(name) <= 47 for name in names)


@pytest.mark.parametrize(
    ("matrix", "path", "fix"),
    [
        ({"seed": [1, 1]}, "matrix", "twice"),
        ({"seed": []}, "matrix.seed", "seed: [1, 2, 3]"),
        ([1, 2], "matrix", "seed: [1, 2, 3]"),
        ({"loss_type": [1, 2]}, "loss_type", "opd.loss_type"),
    ],
)
def test_a_bad_sweep_is_a_spec_error_that_names_the_key(tmp_path: Path, matrix: Any, path: str, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand(tmp_path, matrix=matrix)
    [problem] = caught.value.problems
    assert problem.path == path
    assert fix in problem.fix


def test_a_key_of_the_spec_is_set_by_its_dotted_path_in_every_cell(tmp_path: Path) -> None:
    matrix = {"opd.loss_type": ["reverse_kl", "jsd"], "seed": [1, 2]}
    cells = expand(tmp_path, opd={"chunk_size": 64}, matrix=matrix)
    assert [(cell.spec.opd.loss_type, cell.spec.seed) for cell in cells] == [
        ("reverse_kl", 1), ("reverse_kl", 2), ("jsd", 1), ("jsd", 2)
    ]  # fmt: skip
    assert [cell.run_id for cell in cells][::3] == ["run-loss-type-reverse-kl-seed-1", "run-loss-type-jsd-seed-2"]
    assert all(cell.values["opd"]["chunk_size"] == 64 for cell in cells)


@pytest.mark.parametrize(("sets", "env"), [(("seed=5",), {}), (("model.path=a",), {}), ((), {"MODEL_PATH": "a"})])
def test_a_sweep_whose_key_is_overridden_is_refused(tmp_path: Path, sets: tuple[str, ...], env: dict[str, str]) -> None:
    matrix = {"seed": [1, 2]} if sets == ("seed=5",) else {"model.path": ["b", "c"]}
    with pytest.raises(SpecError, match="its cells are the same one"):
        expand(tmp_path, env=env, sets=sets, matrix=matrix)


@pytest.mark.parametrize("more", [{"env": {"RUN_ID": "mine"}}, {"sets": ("name=mine",)}])
def test_a_name_given_to_a_sweep_is_the_first_part_of_every_cell_s(tmp_path: Path, more: dict[str, Any]) -> None:
    assert [cell.run_id for cell in expand(tmp_path, matrix={"seed": [1, 2]}, **more)] == ["mine-seed-1", "mine-seed-2"]
