"""Tests of the drawn mutants: each changes one place of the code to something that still compiles."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants.drawn import ROOMS, ROOT, covering, draw
from tests.mutants.mutant import Mutant


def mutated(mutant: Mutant, folder: Path) -> tuple[str, str]:
    path = folder / "opd" / mutant.file
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "src" / "opd" / mutant.file, path)
    before = path.read_text()
    mutant.apply(folder)
    return before, path.read_text()


@pytest.mark.slow
def test_drawn_mutants_are_those_of_their_seed_and_all_compile(tmp_path: Path) -> None:
    drawn = draw(ROOT / "src", 100, seed=1)
    assert drawn == draw(ROOT / "src", 100, seed=1)
    assert drawn != draw(ROOT / "src", 100, seed=2)
    for mutant in drawn:
        before, after = mutated(mutant, tmp_path)
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), mutant.describe()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_code_and_tests(room: str) -> None:
    [first, *_] = sorted((ROOT / "src" / "opd" / room).glob("*.py"))
    assert covering(Mutant(what="", file=f"{room}/{first.name}", old="", new=""))


def failure_of(code: str) -> str:
    script = f"import hypothesis\nfrom tests.mutants import __main__ as mutants\n{code}"
    script += "\ntry: print(mutants.failure_of(None, ['tests/batch/test_rows.py']))\nexcept RuntimeError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_tests_run_though_a_library_with_a_plugin_for_pytest_is_loaded() -> None:
    assert failure_of("") == "None\n"


def test_a_trial_whose_pytest_does_not_come_to_its_end_says_why() -> None:
    assert "ZeroDivisionError" in failure_of("mutants.pytest.main = lambda *arguments, **more: 1 / 0")
