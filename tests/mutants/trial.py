"""A mutated copy of the sources under the tests that cover the file, in a process forked from one with the libraries loaded."""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import importlib
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900.0
# Loaded once, before the first fork: to load them for every mutant costs more than most of its tests. `opd` is not among them.
LIBRARIES = ("hypothesis", "numpy", "omegaconf", "pyarrow.parquet", "pydantic", "ray", "rich", "s3fs", "tenacity", "tensordict",
             "torch", "transformers", "verl.workers.engine_workers")  # fmt: skip
SURVIVED = "survived"


class Trial:
    """One mutant, or none, and its tests; they run from construction on."""

    def __init__(self, mutant: Mutant | None, tests: tuple[str, ...]):
        self.mutant, self._began_s = mutant, time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="opd-mutant-"))
        source = self._folder / "src"
        shutil.copytree(ROOT / "src", source)  # compiled, too: the mutated file alone is newer than that
        if mutant is not None:
            mutant.apply(source)
        self._pid = os.fork()
        if not self._pid:
            _run_tests(self._folder, source, tests)

    def verdict(self) -> str | None:
        """What became of it: `survived`, or killed and by which test; None while its tests run.

        Raises:
            RuntimeError: pytest itself failed, which says nothing about the mutant.
        """
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        is_late = not pid and time.monotonic() - self._began_s > TIMEOUT_S
        if not pid and not is_late:
            return None
        self.stop()
        failed, output = self._folder / "failed", self._folder / "output"
        what = failed.read_text() if failed.exists() else ""
        if is_late:
            os.waitpid(self._pid, 0)
        elif not what and status:
            raise RuntimeError(f"pytest ended with {os.waitstatus_to_exitcode(status)}: {output.read_text()[-2000:]}")
        shutil.rmtree(self._folder, ignore_errors=True)
        return (
            f"killed: it had not ended after {TIMEOUT_S:.0f} s"
            if is_late
            else f"killed by {what}"
            if what
            else SURVIVED
        )

    def stop(self) -> None:
        """End the tests and what they left running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, 9)


def prepare() -> None:
    """Loads what tests import beside `opd` into this process, and compiles `opd`."""
    compileall.compile_dir(ROOT / "src", quiet=1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as tests/conftest.py says, and before torch
    for name in LIBRARIES:
        importlib.import_module(name)


def _run_tests(folder: Path, source: Path, tests: tuple[str, ...]) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.chdir(ROOT)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The copy comes before the `pythonpath` of pyproject.toml, for the tests and for the processes that they start.
        os.environ["PYTHONPATH"] = str(source)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={source} {ROOT / 'tools'} {ROOT}"]
        # pytest warns of plugins' modules that are loaded already, which is what the fork is for; warnings are errors here.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={folder / 'tmp'}"]
        code = int(pytest.main([*options, *tests], plugins=[_FirstFailure(folder)]))
    except BaseException:  # noqa: BLE001 - the parent says why
        traceback.print_exc()
    finally:
        os._exit(code)


class _FirstFailure:
    """Writes down which test failed, or which file of tests could not be imported."""

    def __init__(self, folder: Path):
        self._path = folder / "failed"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self._path.exists():
            self._path.write_text(report.nodeid)


def key_of(mutant: Mutant | None, tests: tuple[str, ...]) -> str:
    """Changes with the mutated file (without a mutant: with any source) and with the files of its tests."""
    files = sorted((ROOT / "src").rglob("*.py")) if mutant is None else [ROOT / "src/opd" / mutant.file]
    for path in (ROOT / name for name in tests):
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    parts = [path.read_bytes() for path in files]
    if mutant is not None:
        parts.append(mutant.describe().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def run_trials(
    wanted: list[tuple[Mutant | None, tuple[str, ...]]], at_once: int, known: Callable[[str], str | None]
) -> Iterator[tuple[Mutant | None, tuple[str, ...], str]]:
    """Each with its verdict, in the order in which they end; `known` may have the verdict of a key already."""
    waiting, running = list(wanted), list[tuple[Trial, tuple[str, ...]]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                mutant, tests = waiting.pop(0)
                if verdict := known(key_of(mutant, tests)):
                    yield mutant, tests, verdict
                else:
                    running.append((Trial(mutant, tests), tests))
            for entry in list(running):
                trial, tests = entry
                if verdict := trial.verdict():
                    running.remove(entry)
                    yield trial.mutant, tests, verdict
            time.sleep(0.1 if running else 0)
    finally:
        for trial, _ in running:
            trial.stop()
