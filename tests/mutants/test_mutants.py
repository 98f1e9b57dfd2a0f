"""The mutants fit the code as it is: each changes one place of it, to something that still compiles."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants.drawn import FILES, draw
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutant import Mutant
from tests.mutants.named import NAMED
from tests.mutants.results import judge, table
from tests.mutants.trial import SURVIVED

ROOT = Path(__file__).resolve().parents[2]


def mutated(mutant: Mutant, folder: Path) -> tuple[str, str]:
    path = folder / "opd" / mutant.file
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "src" / "opd" / mutant.file, path)
    before = path.read_text()
    mutant.apply(folder)
    return before, path.read_text()


@pytest.mark.parametrize("mutant", NAMED, ids=Mutant.describe)
def test_a_named_mutant_changes_one_place(mutant: Mutant, tmp_path: Path) -> None:
    before, after = mutated(mutant, tmp_path)
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


@pytest.mark.slow
def test_drawn_mutants_are_those_of_their_seed_and_all_compile(tmp_path: Path) -> None:
    drawn = draw(ROOT / "src", 100, seed=1)
    assert drawn == draw(ROOT / "src", 100, seed=1)
    assert drawn != draw(ROOT / "src", 100, seed=2)
    for mutant in drawn:
        before, after = mutated(mutant, tmp_path)
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), mutant.describe()


@pytest.mark.parametrize("path", sorted({path for tests in FILES.values() for path in tests}))
def test_the_tests_of_a_file_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_table_counts_by_file_and_names_what_no_test_killed_with_its_reason() -> None:
    known = next(iter(EQUIVALENT))
    file, _, what = known.partition(": ")
    harmless, noticed, lost = (
        Mutant(file=name, what=words, old="", new="", tests=())
        for name, words in ((file, what), ("a.py", "noticed"), ("a.py", "not run"))
    )
    judged = {harmless: judge(harmless, SURVIVED), noticed: judge(noticed, "killed by test_it")}
    text = table([harmless, noticed, lost], judged, "make mutants")
    assert "1 killed, 1 equivalent, 0 survived, 1 not judged of 3." in text
    assert "| a.py | 1 | 0 | 0 | 1 |" in text
    assert f"- `{known}`: equivalent: {EQUIVALENT[known]}" in text
    assert "- `a.py: not run`: not judged" in text


def trial_of(code: str) -> str:
    """What a trial of one small file of tests ends with, in a process that forks; `code` runs before."""
    script = f"""
import hypothesis
from tests.mutants import trial
{code}
try:
    [(_, _, verdict)] = trial.run_trials([(None, ("tests/runs/test_identity.py",))], 1, lambda key: None)
except RuntimeError as error:
    verdict = error
print(verdict)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_tests_run_though_a_library_with_a_plugin_for_pytest_is_loaded() -> None:
    assert trial_of("") == f"{SURVIVED}\n"


def test_a_trial_whose_pytest_does_not_come_to_its_end_says_why() -> None:
    assert "ZeroDivisionError" in trial_of("trial.pytest.main = lambda *arguments, **more: 1 / 0")
