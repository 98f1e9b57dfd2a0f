"""Shared pieces of the tool's tests: runs written by the run directory itself, and the command line as a user calls it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forks import TOOL, run_forked

import opd
import opdctl
from opd.evaluation.samples import Sample
from opd.runs.run import Run
from opd.store.base import RetryPolicy

from .in_process import invoke

PYTHON_PATH = os.pathsep.join(str(Path(module.__file__).parent.parent) for module in (opd, opdctl))
SPEC = {
    "kind": "opd",
    "seed": 1,
    "model": {"path": "hub/m", "name": "Toy-Model"},
    "actor": {"learning_rate": 1e-6},
    "trainer": {"total_steps": 4},
    "store": {"url": "x"},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads what another one cached, nor a person's own cache, and none asks a person's own cluster."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("OPDCTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OPDCTL_STORE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `opdctl ARGUMENTS` as a process of its own, in an empty folder."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PYTHONPATH": PYTHON_PATH, "COLUMNS": "240", **environment}
        return run_forked(TOOL, "-m", "opdctl.cli", *arguments, cwd=tmp_path, env=variables)

    return run


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same within this process: for commands that end by themselves and do not look at their own standing."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in {"COLUMNS": "240", **environment}.items():
                patch.setenv(name, value)
            code = invoke(*arguments)
        seen = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, seen.out, seen.err)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def make_run(tmp_path: Path, store: Path) -> Callable[..., str]:
    """Writes one run through `opd.runs`: each item of `attempts` is a map from step to its metrics; returns the run id."""

    def make(
        name: str = "r",
        *,
        attempts: list[dict[int, dict[str, float]]] | None = None,
        spec: dict | None = None,
        result: dict | None = None,
        url: str | None = None,
        log: str = "",
    ) -> str:
        histories = [{1: {"opd/loss": 1.0}}] if attempts is None else attempts
        for number, history in enumerate(histories, start=1):
            run = Run.open(
                run_id=name,
                local_root=tmp_path / "local",
                spec=spec or SPEC,
                spec_hash="hash-1",
                store_url=url or str(store),
                tee=False,
                policy=RetryPolicy(max_elapsed_s=10),
            )
            with run:
                for step, metrics in history.items():
                    run.log(step, metrics)
                if log:
                    (run.handle.attempt_dir / "driver.log").write_text(f"attempt {number}\n{log}")
                if result is not None and number == len(histories):
                    run.finish(result)
        return name

    return make


@pytest.fixture
def answers() -> Callable[..., list[Sample]]:
    """Answers whose accuracy is given for each problem: `answers("r", {0: [1, 0], 1: [1, 1]})`."""

    def make(run_id: str, accuracies: dict[int, list[float]], *, response: str = "42") -> list[Sample]:
        return [
            Sample(
                run_id=run_id, step=1, data_source="math", problem_index=problem, sample_index=index, prompt="2 + 2?",
                response=response, pred="4", ground_truth="4", score=acc, acc=acc, failed=False, num_tokens=3,
                truncated=False,
            )
            for problem, values in accuracies.items()
            for index, acc in enumerate(values)
        ]  # fmt: skip

    return make
