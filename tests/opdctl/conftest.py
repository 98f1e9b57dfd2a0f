"""Shared pieces of the tool's tests: runs written by the run directory itself, and the command line as a user calls it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from opd.evaluation.samples import Sample
from opd.runs.run import Run
from opd.store.base import RetryPolicy
from opdctl import cli
from opdctl.console import run_guarded

SPEC = {
    "kind": "opd",
    "seed": 1,
    "model": {"path": "hub/m", "name": "Toy-Model"},
    "actor": {"learning_rate": 1e-6},
    "trainer": {"total_steps": 4},
    "store": {"url": "x"},
}


@pytest.fixture(autouse=True)
def own_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks a person's own cluster or store."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("OPDCTL_STORE", raising=False)


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `opdctl ARGUMENTS` in an empty folder."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in {"COLUMNS": "240", **environment}.items():
                patch.setenv(name, value)
            patch.setattr("opdctl.console.leave_at_once", leave)
            try:
                code = run_guarded(lambda: cli._invoke([str(word) for word in arguments]))
            except SystemExit as end:
                code = int(end.code or 0)
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
        name: str = "r", *, attempts: list[dict[int, dict[str, float]]] | None = None, spec: dict | None = None,
        result: dict | None = None, url: str | None = None, log: str = "",
    ) -> str:  # fmt: skip
        histories = [{1: {"opd/loss": 1.0}}] if attempts is None else attempts
        for number, history in enumerate(histories, start=1):
            with Run.open(run_id=name, local_root=tmp_path / "local", spec=spec or SPEC, spec_hash="hash-1",
                          store_url=url or str(store), tee=False, policy=RetryPolicy(max_elapsed_s=10)) as run:  # fmt: skip
                for step, metrics in history.items():
                    run.log(step, metrics)
                if log:
                    (run.attempt_dir / "driver.log").write_text(f"attempt {number}\n{log}")
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
