"""The project's public commands as a person types them; each command line stands here once.

Tests of this folder use commands, files and documented Python names only. A change of a command line changes this
module, and no test.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
# The options by which a start reads the variables of the shell.
READS_VARIABLES: tuple[str, ...] = ()
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "OPD_TOOLS_DIR")
_SET_BY_VARIABLE = re.compile(r"^opd\.launch: environment (\w+): (\S+) = (.*)$", re.MULTILINE)
_STAGE = re.compile(r"^# stage (\w+): ([\w-]+)", re.MULTILINE)
_OVERRIDE = re.compile(r"^[+]*([\w.]+)=(.*)$", re.MULTILINE)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a child's environment: these variables, and none of this process's own that the project reads."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")])
    return {**kept, "PYTHONPATH": path, "COLUMNS": "240", **(variables or {})}


def run(
    words: Sequence[object],
    *,
    cwd: Path = ROOT,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def python(module: str, *words: object) -> list[object]:
    """Return the command line `python -m MODULE WORDS`."""
    return [sys.executable, "-m", module, *words]


def launch(file: object, *words: object) -> list[object]:
    """Return the command line that starts an experiment file under the variables of the shell."""
    return python("opd.launch", file, *READS_VARIABLES, *words)


def opdctl(*words: object) -> list[object]:
    """Return the command line `opdctl WORDS`."""
    return [Path(sys.executable).with_name("opdctl"), *words]


def helm(*words: object) -> list[object]:
    """Return the command line `helm WORDS`, with the helm that the charts' tests use."""
    return [helm_program(), *words]


def helm_program() -> Path:
    """Return the path of the helm that the charts' tests use."""
    import gotools

    return gotools.find("helm")


def make(*words: str) -> list[str]:
    """Return the commands that a make target would run."""
    done = run(["make", "-n", "--no-print-directory", *words])
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@dataclass(frozen=True)
class DryRun:
    """What a start would do with an experiment file."""

    code: int
    err: str
    values: dict[str, Any] = field(default_factory=dict)
    """Values by key: verl's overrides, and each key of the experiment file that a variable set."""
    keys: dict[str, str] = field(default_factory=dict)
    """The key of the experiment file that each variable set."""
    stages: dict[str, str] = field(default_factory=dict)
    """The kind of each stage of a pipeline."""


def dry_run(text: str, *words: str, **variables: str) -> DryRun:
    """Return what `--dry-run` prints for an experiment file of this text under these variables."""
    return _dry_run(text, words, tuple(sorted(variables.items())))


@functools.cache
def _dry_run(text: str, words: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> DryRun:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "exp.yaml"
        file.write_text(text)
        done = _imported().run(launch(file, *words, "--dry-run"), Path(folder), environment(dict(variables)))
    applied = _SET_BY_VARIABLE.findall(done.stderr)
    values = {key: plain(value) for _, key, value in applied}
    values |= {key: plain(value) for key, value in _OVERRIDE.findall(done.stdout)}
    keys, stages = {name: key for name, key, _ in applied}, dict(_STAGE.findall(done.stdout))
    return DryRun(done.returncode, done.stderr, values, keys, stages)


# Runs `python -m MODULE` in a fork of a process that has made one dry run, and so holds the imports of the next ones.
_FORKS = """
import contextlib, gc, io, json, os, runpy, sys, traceback
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    runpy.run_module("opd.launch", run_name="__main__", alter_sys=True)
gc.freeze()
for line in sys.stdin:
    module, words, folder, variables = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        sys.stdin, sys.argv = open(0), ["", *words]
        code = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class _Imported:
    """A process that runs commands as `python -m` does, without their imports."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", _FORKS, str(ROOT / "manifests/experiments/quickstart.yaml"), "--dry-run"]
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment())
        atexit.register(self._end)

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(self, words: Sequence[object], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run `python -m MODULE WORDS` in an empty folder, which also gets what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        module, *arguments = [str(word) for word in words[2:]]
        self._process.stdin.write(json.dumps([module, arguments, str(folder), dict(env)]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        printed, errors = ((folder / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(list(words), code, printed, errors)


@functools.cache
def _imported() -> _Imported:
    return _Imported()


def plain(text: str) -> Any:
    """Return the value that a printed override stands for."""
    if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    return yaml.safe_load(text)
