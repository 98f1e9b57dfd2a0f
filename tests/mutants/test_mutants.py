"""Tests of the drawn mutants: each changes one place of the code to something that still compiles."""

from __future__ import annotations

import ast
import shutil
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
