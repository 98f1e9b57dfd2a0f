"""A submit under a name: each way in which the name may be taken."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from opd.experiment import AnySpec, identity, load_text, spec_hash
from opdctl.console import ToolError
from opdctl.kube.rayjob import ClusterRun, read_job
from opdctl.submit import Name, decide

EXPERIMENT: dict[str, Any] = {"kind": "opd", "name": "r", "model": {"path": "m"}, "teacher": {"path": "t"}}


def spec_of(**more: Any) -> AnySpec:
    return load_text(json.dumps({**EXPERIMENT, **more}), origin="test", is_json=True).spec


SPEC = spec_of()
FREE = Name(run_id="r", cluster=ClusterRun(job=None), release=None)
STARTED = {"run": {"spec_hash": spec_hash(SPEC), "identity": identity(SPEC)}}


def name(**more: Any) -> Name:
    return dataclasses.replace(FREE, **more)


def test_a_free_name_starts() -> None:
    assert decide(FREE, SPEC) == ""


@pytest.mark.parametrize("deployment", ["", "Initializing", "Running", "Retrying", "Suspending", "Suspended"])
def test_a_live_run_is_refused(deployment: str, rayjob: Callable) -> None:
    job = read_job(rayjob(jobDeploymentStatus=deployment))
    with pytest.raises(ToolError, match="run r is live") as caught:
        decide(name(cluster=ClusterRun(job=job), release="deployed"), SPEC)
    assert caught.value.exit_code == 1
    wanted = "kubectl patch rayjob r --type=merge" if deployment == "Suspended" else "opdctl"
    assert wanted in caught.value.fix


@pytest.mark.parametrize(
    ("deployment", "job"), [("Failed", "FAILED"), ("Complete", "STOPPED"), ("ValidationFailed", "")]
)
def test_a_run_that_did_not_succeed_is_resumed_and_the_reason_told(deployment: str, job: str, rayjob: Callable) -> None:
    state = read_job(rayjob(jobDeploymentStatus=deployment, jobStatus=job, message="because"))
    why = decide(name(cluster=ClusterRun(job=state), release="deployed", **STARTED), SPEC)
    assert "because" in why


def test_a_run_that_succeeded_is_refused_with_its_result(rayjob: Callable) -> None:
    result = {"steps": 50, "accuracy": 0.9, "eval": {"big": "table"}}
    with pytest.raises(ToolError, match=r'succeeded already: {"steps": 50, "accuracy": 0.9}'):
        decide(name(result=result, **STARTED), SPEC)
    done = read_job(rayjob(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED"))
    with pytest.raises(ToolError, match="succeeded already"):
        decide(name(cluster=ClusterRun(job=done), release="deployed"), SPEC)


@pytest.mark.parametrize("where", ["store", "cluster"])
def test_another_spec_under_the_name_is_refused_with_what_differs(where: str) -> None:
    other = {"model": {"path": "other"}}
    if where == "store":
        before = spec_of(**other)
        taken = name(run={"spec_hash": spec_hash(before), "identity": json.loads(json.dumps(identity(before)))})
    else:
        taken = name(cluster=ClusterRun(job=None, experiment={**EXPERIMENT, **other}), release="deployed")
    with pytest.raises(ToolError, match=r"model\.path: 'other' -> 'm'") as caught:
        decide(taken, SPEC)
    assert caught.value.exit_code == 2


def test_a_mended_file_takes_a_name_under_which_nothing_was_trained() -> None:
    before = spec_of(model={"path": "wrong"})
    stored = {"spec_hash": spec_hash(before), "identity": json.loads(json.dumps(identity(before)))}
    taken = name(run=stored, fatal={"reason": "no such folder"}, is_unused=True)
    assert "nothing was trained under its name" in decide(taken, SPEC)
    assert "model.path: 'wrong' -> 'm'" in decide(taken, SPEC)


def test_a_run_that_ended_for_good_is_resumed_by_a_retry() -> None:
    ended = name(fatal={"reason": "no such file"}, **STARTED)
    assert decide(ended, SPEC, is_retry=True) == "it had ended for good: no such file"
    with pytest.raises(ToolError, match="no such file") as caught:
        decide(ended, SPEC)
    assert "--retry" in caught.value.fix


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"live_on": "laptop", **STARTED}, "outside this namespace, on laptop"),
        ({"release": "pending-install"}, "pending-install"),
    ],
)
def test_a_run_elsewhere_and_an_install_at_work_are_left_alone(known: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolError, match=words):
        decide(name(**known), SPEC)
