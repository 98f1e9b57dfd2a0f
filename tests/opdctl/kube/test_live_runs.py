"""The runs that live in a namespace, or in all of them, over HTTP as the API server answers."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from opd.store.local import LocalStore
from opdctl.commands.delete import unused_claims
from opdctl.commands.list_runs import live_runs, merged
from opdctl.kube.client import KubeApi

Tree = dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    items: ClassVar[dict[str, list[Tree]]]
    asked: ClassVar[list[tuple[str, str]]]

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        self.asked.append((at.path, parse_qs(at.query).get("labelSelector", [""])[0]))
        found = self.items.get(at.path)
        body = json.dumps({"message": "not found"} if found is None else {"items": found, "metadata": {}}).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, list[Tree]]], tuple[KubeApi, list[tuple[str, str]]]]]:
    """Answers lists by their path; gives the API of namespace `opd`, and what was asked: (path, selector)."""
    servers = []

    def start(items: dict[str, list[Tree]]) -> tuple[KubeApi, list[tuple[str, str]]]:
        asked: list[tuple[str, str]] = []
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"items": items, "asked": asked}))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
        configuration.retries = False
        return KubeApi(client.ApiClient(configuration), namespace="opd", context=None), asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def kubeconfig(api: KubeApi, folder: Path) -> str:
    """Path of one that leads to the server."""
    here = {"cluster": "c", "user": "u", "namespace": "opd"}
    clusters = [{"name": "c", "cluster": {"server": api.client.configuration.host}}]
    config = {"clusters": clusters, "users": [{"name": "u", "user": {}}], "contexts": [{"name": "x", "context": here}]}
    (folder / "kubeconfig").write_text(json.dumps(config | {"current-context": "x"}))
    return str(folder / "kubeconfig")


def test_live_runs_come_with_the_gpus_that_their_pods_hold(serve: Callable, rayjob: Callable, pod: Callable) -> None:
    job = rayjob(jobDeploymentStatus="Running")
    job["metadata"]["labels"]["opd/kind"] = "eval"
    pods = [pod("worker", name=f"w{number}", gpus=8) for number in range(2)]
    pods.append(pod("worker", name="gone", gpus=8, phase="Failed"))
    root = "/apis/ray.io/v1/namespaces/opd/rayjobs"
    api, asked = serve({root: [job], "/api/v1/namespaces/opd/pods": pods})
    [(state, gpus)] = found = live_runs(api)
    assert (state.name, state.phase, gpus) == ("r", "running", 16)
    assert merged(found, [])[0].kind == "eval", "of the label, before its store says anything"
    assert {selector for _, selector in asked} == {"opd/run-id"}


def test_a_namespace_without_runs_is_no_error(serve: Callable, inside: Callable, tmp_path: Path) -> None:
    core = "/api/v1/namespaces/opd"
    empty = [f"{core}/pods", f"{core}/configmaps", "/apis/ray.io/v1/namespaces/opd/rayjobs"]
    api, _ = serve({path: [] for path in empty})
    done = inside("list", "-n", "opd", KUBECONFIG=kubeconfig(api, tmp_path))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.startswith("no run")


def test_live_runs_whose_store_refuses_or_is_away_leave_the_others_their_rows(
    serve: Callable, inside: Callable, make_run: Callable, rayjob: Callable, store: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    jobs = []
    for name in ("good", "refused"):
        make_run(name)
        jobs.append(rayjob(jobDeploymentStatus="Running"))
        jobs[-1]["metadata"] |= {"name": name, "labels": {"opd/run-id": name}}
    core = "/api/v1/namespaces/opd"
    api, _ = serve({f"{core}/pods": [], f"{core}/configmaps": [], "/apis/ray.io/v1/namespaces/opd/rayjobs": jobs})
    get = LocalStore._get

    def refuse(place: LocalStore, key: str) -> bytes:
        if place.root.name == "refused":
            raise PermissionError(errno.EACCES, "no right")
        return get(place, key)

    monkeypatch.setattr(LocalStore, "_get", refuse)
    words = ("list", "-n", "opd", "--store", store, "-o", "json")
    done = inside(*words, KUBECONFIG=kubeconfig(api, tmp_path))
    assert [(row["run_id"], row["last_step"]) for row in json.loads(done.stdout)["runs"]] == [
        ("good", 1),
        ("refused", None),
    ]
    [remark] = done.stderr.splitlines()
    assert remark.startswith(f"note: runs of {store} were left out: cannot read {store}/refused/")
    assert inside("list", "--store", store).returncode == 1


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
    api, _ = serve({
        f"{core}/persistentvolumeclaims": [claim("gone"), claim("r"), claim("b"), claim("c")],
        f"{core}/configmaps": [installed], f"{core}/pods": [mounting],
        "/apis/ray.io/v1/namespaces/opd/rayjobs": [rayjob()],
    })  # fmt: skip
    assert [found["name"] for found in unused_claims(api)] == ["gone-checkpoints"]
    done = inside("delete", "--unused-claims", KUBECONFIG=kubeconfig(api, tmp_path))
    assert done.returncode == 2
    assert "gone-checkpoints  500Gi" in done.stdout
    assert "say --yes" in done.stderr
