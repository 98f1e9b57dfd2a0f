"""The runs that live in a namespace, or in all of them, over HTTP as the API server answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client
from tests.fast_tier.nodes import NODES

from opdctl.doctor.offers import look_at_offers
from opdctl.kube.client import KubeApi
from opdctl.runs.overview import live_runs

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


def test_live_runs_come_with_the_gpus_that_their_pods_hold(serve: Callable, rayjob: Callable, pod: Callable) -> None:
    job = rayjob(jobDeploymentStatus="Running")
    pods = [pod("worker", name=f"w{number}", gpus=8) for number in range(2)]
    pods.append(pod("worker", name="gone", gpus=8, phase="Failed"))
    root = "/apis/ray.io/v1/namespaces/opd/rayjobs"
    api, asked = serve({root: [job], "/api/v1/namespaces/opd/pods": pods})
    [(namespace, state, gpus)] = live_runs(api, everywhere=False, selector="team=a")
    assert (namespace, state.name, state.phase, gpus) == ("opd", "r", "running", 16)
    assert {selector for _, selector in asked} == {"opd/run-id,team=a"}


def test_all_namespaces_are_asked_at_once_and_told_apart(serve: Callable, rayjob: Callable) -> None:
    jobs = []
    for namespace in ("a", "b"):
        job = rayjob()
        job["metadata"] |= {"namespace": namespace}
        jobs.append(job)
    api, _ = serve({"/apis/ray.io/v1/rayjobs": jobs, "/api/v1/pods": []})
    assert [namespace for namespace, _, _ in live_runs(api, everywhere=True, selector="")] == ["a", "b"]


def test_offers_are_read_from_nodes_and_classes_and_the_default_class_is_first(serve: Callable) -> None:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    classes = [{"metadata": {"name": "slow"}}, {"metadata": {"name": "shared", "annotations": default}}]
    api, _ = serve({"/api/v1/nodes": NODES, "/apis/storage.k8s.io/v1/storageclasses": classes})
    found = look_at_offers(api)
    assert found.storage_classes == ["shared", "slow"]
    assert len(found.gpus) == 3
    assert found.queues == []
    assert found.remarks == []
