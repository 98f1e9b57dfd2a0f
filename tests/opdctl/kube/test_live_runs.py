"""The runs that live in a namespace, or in all of them, over HTTP as the API server answers."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.opdctl.kube.conftest import FakeApi, Tree

from opd.store.local import LocalStore
from opdctl.commands.delete import unused_claims
from opdctl.commands.list_runs import live_runs, merged


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[Tree]]], FakeApi]:
    """Answer lists by their path, also to the command line with `-n opd`."""

    def start(items: dict[str, list[Tree]]) -> FakeApi:
        api = FakeApi(lambda method, path, query: (200, {"items": items[path]}) if path in items else None)
        monkeypatch.setattr("opdctl.runs.find.connect", lambda **place: api)
        return api

    return start


def test_live_runs_come_with_the_gpus_that_their_pods_hold(serve: Callable, rayjob: Callable, pod: Callable) -> None:
    job = rayjob(jobDeploymentStatus="Running")
    job["metadata"]["labels"]["opd/kind"] = "eval"
    pods = [pod("worker", name=f"w{number}", gpus=8) for number in range(2)]
    pods.append(pod("worker", name="gone", gpus=8, phase="Failed"))
    root = "/apis/ray.io/v1/namespaces/opd/rayjobs"
    api = serve({root: [job], "/api/v1/namespaces/opd/pods": pods})
    [(state, gpus)] = found = live_runs(api)
    assert (state.name, state.phase, gpus) == ("r", "running", 16)
    assert merged(found, [])[0].kind == "eval", "of the label, before its store says anything"
    assert {query["labelSelector"] for _, _, query in api.asked} == {"opd/run-id"}


def test_live_runs_whose_store_refuses_or_is_away_leave_the_others_their_rows(
    serve: Callable, inside: Callable, make_run: Callable, rayjob: Callable, store: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    names = [make_run(name) for name in ("good", "refused")]
    jobs = [rayjob(name, jobDeploymentStatus="Running") for name in names]
    core = "/api/v1/namespaces/opd"
    serve({f"{core}/pods": [], f"{core}/configmaps": [], "/apis/ray.io/v1/namespaces/opd/rayjobs": jobs})
    get = LocalStore._get

    def refuse(place: LocalStore, key: str) -> bytes:
        if place.root.name == "refused":
            raise PermissionError(errno.EACCES, "no right")
        return get(place, key)

    monkeypatch.setattr(LocalStore, "_get", refuse)
    done = inside("list", "-n", "opd", "--store", store, "-o", "json")
    rows = [(row["run_id"], row["last_step"]) for row in json.loads(done.stdout)["runs"]]
    assert rows == [("good", 1), ("refused", None)]
    [remark] = done.stderr.splitlines()
    assert remark.startswith(f"note: runs of {store} were left out: cannot read {store}/refused/")
    assert "good" in inside("list", "--store", store).stdout
    shutil.rmtree(store / "good")
    assert inside("list", "--store", store).returncode == 1, "no run can be read"


def test_a_claim_is_unused_without_a_release_a_rayjob_and_a_pod(
    serve: Callable, inside: Callable, rayjob: Callable, pod: Callable, tmp_path: Path
) -> None:
    def claim(run_id: str) -> Tree:
        metadata = {"name": f"{run_id}-checkpoints", "labels": {"opd/run-id": run_id}}
        return {"metadata": metadata, "spec": {"resources": {"requests": {"storage": "500Gi"}}}}

    installed = {"metadata": {"name": "b", "labels": {"opd/run-id": "b"}}, "data": {"exp.json": "{}"}}
    mounting = pod("head", name="p")
    mounting["spec"]["volumes"] = [{"persistentVolumeClaim": {"claimName": "c-checkpoints"}}]
    core = "/api/v1/namespaces/opd"
    api = serve({
        f"{core}/persistentvolumeclaims": [claim("gone"), claim("r"), claim("b"), claim("c")],
        f"{core}/configmaps": [installed], f"{core}/pods": [mounting],
        "/apis/ray.io/v1/namespaces/opd/rayjobs": [rayjob()],
    })  # fmt: skip
    assert [found["name"] for found in unused_claims(api)] == ["gone-checkpoints"]
    done = inside("delete", "--unused-claims", "-n", "opd")
    assert done.returncode == 2
    assert "gone-checkpoints  500Gi" in done.stdout
    assert "say --yes" in done.stderr
