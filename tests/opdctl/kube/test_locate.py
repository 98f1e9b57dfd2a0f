"""Finding a run on both sides: kubeconfigs that lead nowhere do not keep anybody from the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "opd"}}],
    "current-context": "x",
}


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A kubeconfig of a cluster that nobody answers for."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(KUBECONFIG))
    return str(path)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_said_and_the_store_is_shown(
    call: Callable, make_run: Callable, store: Path, nowhere: str
) -> None:
    make_run("r", result={"steps": 1})
    done = call("status", "r", "--store", store, KUBECONFIG=nowhere)
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert "the cluster was left out: no answer from the API server at http://127.0.0.1:1" in done.stderr


@pytest.mark.slow
def test_a_cluster_that_was_asked_for_must_answer(
    call: Callable, make_run: Callable, store: Path, nowhere: str
) -> None:
    make_run("r")
    done = call("status", "r", "--store", store, "-n", "opd", KUBECONFIG=nowhere)
    assert done.returncode == 1
    assert "no answer from the API server" in done.stderr
    assert "--context" in done.stderr


@pytest.mark.slow
def test_a_context_that_is_not_in_the_kubeconfig_is_named(call: Callable, nowhere: str) -> None:
    done = call("cancel", "r", "--context", "other", KUBECONFIG=nowhere)
    assert done.returncode == 1
    assert "other" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_a_kubeconfig_a_cluster_command_says_so(call: Callable, tmp_path: Path) -> None:
    done = call("cancel", "r", KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "there is no kubeconfig" in done.stderr
