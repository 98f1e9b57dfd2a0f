"""What a run refuses before its trainer is started."""

from __future__ import annotations

import importlib.util

import pytest

from opd.config import SpecError
from opd.config.run_config import RunFacts
from opd.errors import MissingPackage
from opd.main_opd import spec_of
from opd.trainer.entry import check_server, compose


def spec(device: str):
    return spec_of(["actor_rollout_ref.model.path=m", f"trainer.device={device}"], {"TEACHER_MODEL_PATH": "t"})


def test_a_rollout_server_that_is_not_installed_is_refused_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"rollout\.name: vllm needs the package vllm.*make setup-gpu") as refused:
        check_server(spec("cuda"))
    assert refused.value.exit_code == 2


def test_the_cpu_server_needs_no_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_server(spec("cpu"))


def test_an_override_that_verls_config_does_not_know_is_refused_by_its_key():
    given = ["actor_rollout_ref.model.path=m", "trainer.device=cpu", "actor_rollout_ref.rollout.nn=3"]
    with pytest.raises(SpecError) as refused:
        compose(spec_of(given, {"TEACHER_MODEL_PATH": "t"}), RunFacts(run_id="r", run_dir=None))
    [problem] = refused.value.problems
    assert problem.path == "overrides"
    assert "Could not override 'actor_rollout_ref.rollout.nn'" in problem.rule
    assert "+KEY=VALUE adds a key that verl's config lacks" in problem.fix
