"""Refusals of a run before its trainer starts, and its ends."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opd.ending import Ending
from opd.errors import MissingPackage
from opd.experiment import AnyRunSpec, SpecError, load_spec, parse_tree
from opd.experiment.run_config import RunFacts
from opd.launch import facts
from opd.main_opd import spec_of
from opd.trainer import entry
from opd.trainer.entry import check_server, compose


def spec(device: str):
    return spec_of(["actor_rollout_ref.model.path=m", f"trainer.device={device}"], {"TEACHER_MODEL_PATH": "t"})


def test_a_rollout_server_that_is_not_installed_is_refused_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingPackage, match=r"rollout\.name: vllm needs the package vllm.*make setup-gpu") as refused:
        check_server(spec("cuda"))
    assert refused.value.exit_code == 2


STORED = {
    "kind": "opd", "model": {"path": "m"}, "trainer": {"test_freq": -1, "val_before_train": False},
    "opd": {"teacher_answers": ["a.parquet"], "stages": [{"rollouts": "teacher"}]},
}  # fmt: skip


@pytest.mark.parametrize("asked", [spec("cpu"), parse_tree(STORED).spec], ids=["CPU", "stored answers"])
def test_the_cpus_server_and_a_run_without_a_server_need_no_package(monkeypatch, asked):
    monkeypatch.setitem(sys.modules, "vllm", None)
    check_server(asked)


def test_an_override_that_verls_config_does_not_know_is_refused_by_its_key():
    given = ["actor_rollout_ref.model.path=m", "trainer.device=cpu", "actor_rollout_ref.rollout.nn=3"]
    with pytest.raises(SpecError) as refused:
        compose(spec_of(given, {"TEACHER_MODEL_PATH": "t"}), RunFacts(run_id="r", run_dir="out/r"))
    [problem] = refused.value.problems
    assert problem.path == "overrides"
    assert "Could not override 'actor_rollout_ref.rollout.nn'" in problem.rule
    assert "+KEY=VALUE adds a key that verl's config lacks" in problem.fix


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], int]:
    """Runs an attempt that ends by an error in place of its training, or well; returns its exit code."""
    monkeypatch.chdir(tmp_path)
    experiment = Path(__file__).parents[2] / "manifests/experiments/quickstart.yaml"
    sets = [f"output.root={tmp_path}", f"store.url={tmp_path}/store", "name=r"]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(error: Exception | None) -> int:
        def train(spec: AnyRunSpec, *_: object) -> Ending:
            if error is not None:
                raise error
            return Ending(result={"steps": 1})

        monkeypatch.setattr(entry, "_work", train)
        spec = load_spec(experiment, env={}, sets=sets).spec
        return entry.run(spec, facts(spec))

    return run


@pytest.mark.slow
def test_the_traceback_of_an_unexpected_error_is_in_the_stored_log_and_told_once(attempt, tmp_path, monkeypatch, capfd):
    with open(2, "w", buffering=1, closefd=False) as stderr:  # pytest's own would pass the log by
        monkeypatch.setattr(sys, "stderr", stderr)
        assert attempt(ZeroDivisionError("by nothing")) == 1
    log = (tmp_path / "store/r/attempts/0001/driver.log").read_text()
    assert "Traceback" in log
    assert log.count("ZeroDivisionError: by nothing") == capfd.readouterr().err.count("ZeroDivisionError") == 1
