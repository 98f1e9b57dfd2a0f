"""The project's public commands as a person types them; each command line is here once.

Tests of this folder use commands, files and documented Python names only. A change of a command line changes this
module, and no test.
"""

import functools
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
from tests import entry_points
from tests.forks import DRY_RUN, run_forked

ROOT = Path(__file__).resolve().parents[2]
# The options by which a start reads the variables of the shell.
READS_VARIABLES: tuple[str, ...] = ("--env",)
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "OPD_TOOLS_DIR")
_SET_BY_VARIABLE = re.compile(r"^opd\.launch: environment (\w+): (\S+) = (.*)$", re.MULTILINE)
_STAGE = re.compile(r"^# stage (\w+): ([\w-]+)", re.MULTILINE)
_OVERRIDE = re.compile(r"^[+]*([\w.]+)=(.*)$", re.MULTILINE)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a child's environment: these variables, and none of this process's own that the project reads."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools"), str(entry_points.FOLDER)])
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
    """The result of a start's dry run on an experiment file."""

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
        command = launch(file, *words, "--dry-run")[1:]
        done = run_forked(DRY_RUN, *command, cwd=Path(folder), env=environment(dict(variables)))
    applied = _SET_BY_VARIABLE.findall(done.stderr)
    values = {key: plain(value) for _, key, value in applied}
    values |= {key: plain(value) for key, value in _OVERRIDE.findall(done.stdout)}
    keys, stages = {name: key for name, key, _ in applied}, dict(_STAGE.findall(done.stdout))
    return DryRun(done.returncode, done.stderr, values, keys, stages)


def plain(text: str) -> Any:
    """Return the value of a printed override."""
    if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    return yaml.safe_load(text)
