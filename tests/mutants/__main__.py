"""Command of `make mutants`: changes the code in places that a seed draws, and lists the changes that no test notices.

Each mutant is a copy of `src/` with one change. The tests of its room run in a process forked from one with the libraries loaded,
those first that execute the changed lines.
"""

import argparse
import compileall
import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from coverage import Coverage, CoverageData
from tests.mutants.drawn import ROOMS, ROOT, draw
from tests.mutants.mutant import Mutant

TIMEOUT_S = 1800.0
# Every mutant would load them again, which takes longer than most of its tests.
LIBRARIES = ("hypothesis", "numpy", "omegaconf", "pyarrow.parquet", "pydantic", "ray", "rich", "s3fs", "tenacity", "tensordict",
             "torch", "transformers", "verl.workers.engine_workers")  # fmt: skip


def failure_of(mutant: Mutant | None, tests: str, first: Mapping[str, float], map_to: Path | None = None) -> str | None:
    """Return the first test that fails with the mutant in the code; None if all pass.

    Args:
        tests: folder. first: functions of tests that run before the others -> their seconds.
        map_to: folder for the lines and seconds of each test.

    Raises:
        RuntimeError: pytest itself failed, which says nothing about the mutant.
    """
    with tempfile.TemporaryDirectory(prefix="opd-mutant-") as name:
        folder = Path(name)
        source = folder / "src"
        shutil.copytree(ROOT / "src", source)  # with bytecode: only the mutated file is newer
        if mutant is not None:
            mutant.apply(source)
        pid = os.fork()
        if not pid:
            _run_tests(folder, source, tests, first, map_to)
        status = _status_of(pid)
        if status is None:
            return f"no end after {TIMEOUT_S:.0f} s"
        failed = folder / "failed"
        if failed.exists():
            return failed.read_text()
        if status:
            output = (folder / "output").read_text()[-2000:]
            raise RuntimeError(f"pytest ended with {os.waitstatus_to_exitcode(status)}: {output}")
        return None


def _status_of(pid: int) -> int | None:
    """Wait for a child that leads a process group, then kill the rest of the group; None after TIMEOUT_S."""
    last, ended, status = time.monotonic() + TIMEOUT_S, 0, 0
    while not ended and time.monotonic() < last:
        time.sleep(0.1)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
    return status if ended else None


def _run_tests(folder: Path, source: Path, tests: str, first: Mapping[str, float], map_to: Path | None) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.chdir(ROOT)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The copy precedes pyproject.toml's `pythonpath`, for the tests and for the processes that they start.
        os.environ["PYTHONPATH"] = str(source)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={source} {ROOT / 'tools'} {ROOT}", tests]
        options += ["-m", "not e2e and not cluster and not vllm and not gpu", f"--basetemp={folder / 'tmp'}"]
        # pytest warns about plugins whose modules the parent has loaded.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        seen = _Seen(folder / "failed", first)
        if map_to is None:
            code = int(pytest.main(options, plugins=[seen]))
        else:
            cover = Coverage(data_file=str(map_to / "lines"), source=[str(source)], config_file=False)
            cover.set_option("run:dynamic_context", "test_function")
            with cover.collect():
                code = int(pytest.main([*options, "--timeout=600"], plugins=[seen]))
            cover.save()
            (map_to / "seconds.json").write_text(json.dumps(seen.seconds))
            (map_to / "source").write_text(str(source))
    except BaseException:  # noqa: BLE001 - the parent reads the output
        traceback.print_exc()
    finally:
        os._exit(code)


class _Seen:
    """A plugin that orders tests, times them, and records the first that failed, or the file that Python could not import."""

    def __init__(self, failed: Path, first: Mapping[str, float]):
        self._failed, self._first = failed, first
        self.seconds = Counter[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names, seconds = {item: _function_of(item.nodeid) for item in items}, Counter[Path]()
        for item, name in names.items():
            seconds[item.path] += self._first.get(name, 0)
        # File by file, which makes a file's fixtures twice at most.
        items.sort(key=lambda item: (names[item] not in self._first, seconds[item.path]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[_function_of(report.nodeid)] += report.duration
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self._failed.exists():
            self._failed.write_text(report.nodeid)


def _function_of(nodeid: str) -> str:
    """Return a test's function without its file and parameters: coverage's name of a test ends so."""
    return nodeid.partition("[")[0].rpartition("::")[2]


def _tests_of_lines(map_to: Path, mutant: Mutant) -> dict[str, float]:
    """Return the functions of tests that execute a mutant's lines -> their seconds."""
    data = CoverageData(str(map_to / "lines"))
    data.read()
    seconds, file = (
        json.loads((map_to / "seconds.json").read_text()),
        Path((map_to / "source").read_text(), "opd", mutant.file),
    )
    first = (ROOT / "src/opd" / mutant.file).read_text()[: mutant.offset].count("\n") + 1
    of_line = data.contexts_by_lineno(str(file))
    names = {
        name.rpartition(".")[2] for n in range(first, first + mutant.old.count("\n") + 1) for name in of_line.get(n, [])
    }
    return {name: seconds[name] for name in names if name in seconds}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a mutant survived, 2 if tests fail without one."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=150, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="I/N: every N-th mutant from the I-th, for N processes")
    args = parser.parse_args(argv)
    first, parts = map(int, args.part.split("/"))
    mutants = draw(ROOT / "src", args.num, seed=args.seed)[first::parts]
    compileall.compile_dir(ROOT / "src", quiet=1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch
    for name in LIBRARIES:
        importlib.import_module(name)
    killed, drawn = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="opd-lines-") as maps:
        for tests in sorted({ROOMS[mutant.room] for mutant in mutants}):
            Path(maps, tests).mkdir(parents=True)
            if failed := failure_of(None, tests, {}, Path(maps, tests)):
                print(f"without a mutant {failed} fails, so every mutant would seem killed", file=sys.stderr)
                return 2
        for number, mutant in enumerate(mutants, start=1):
            tests = ROOMS[mutant.room]
            failed = failure_of(mutant, tests, _tests_of_lines(Path(maps, tests), mutant))
            drawn[mutant.room] += 1
            killed[mutant.room] += failed is not None
            print(f"{number}/{len(mutants)} {mutant.describe()}: {failed or 'SURVIVED'}", flush=True)
    for room, num in sorted(drawn.items()):
        print(f"{room}: {killed[room]} of {num} killed")
    print(f"all: {killed.total()} of {len(mutants)} killed")
    return int(killed.total() < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
