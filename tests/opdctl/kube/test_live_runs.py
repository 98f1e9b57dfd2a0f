"""The runs that live in a namespace, or in all of them, over HTTP as the API server answers."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.opdctl.kube.conftest import FakeApi, Tree

from opd.store.local import LocalStore
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
