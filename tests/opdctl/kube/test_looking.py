"""`opdctl doctor` reads a cluster once, however many groups of pods ask for the same objects; `submit` looks for their Secrets."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kubernetes import client
from tests.charts.helm import DIGEST, SITES

from gotools import find
from opdctl.chart import helm
from opdctl.chart.values import load_experiments
from opdctl.doctor import check_cluster, check_named
from opdctl.kube.client import KubeApi
from opdctl.kube.objects import Rendered

pytestmark = pytest.mark.helm

ROOT = Path(__file__).parents[3]
EXPERIMENT = """
kind: opd
model: {path: Qwen/Qwen3-1.7B}
teacher: {path: Qwen/Qwen3-8B}
trainer: {gpus_per_node: 8, nnodes: 2}
cluster: {cache: {claim: shared}}
"""
CLAIM = {"metadata": {"name": "shared"}, "spec": {"storageClassName": "disk"}, "status": {"phase": "Pending"}}


class Handler(BaseHTTPRequestHandler):
    reads: ClassVar[Counter[str]]
    may_read_secrets: ClassVar[bool] = True

    def do_GET(self) -> None:
        self.reads[self.path] += 1
        if "/persistentvolumeclaims/shared" in self.path:
            self._answer(200, CLAIM)
        elif "/secrets/" in self.path and not self.may_read_secrets:
            self._answer(403, {"message": "secrets is forbidden", "reason": "Forbidden"})
        elif "/storageclasses" in self.path:
            self._answer(403, {"message": "storageclasses is forbidden", "reason": "Forbidden"})
        elif "limit=" in self.path:
            self._answer(200, {"items": [], "metadata": {}})
        elif self.path in ("/version", "/api/v1/namespaces/opd"):
            self._answer(200, {"metadata": {"name": "opd"}, "gitVersion": "v1"})
        else:
            self._answer(404, {"message": "not found", "reason": "NotFound"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, {"status": {"allowed": True}})

    def _answer(self, status: int, tree: dict[str, Any]) -> None:
        body = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(handler: type[Handler]) -> Iterator[tuple[Counter[str], KubeApi]]:
    """The requests that were counted, and the API of a server with this handler."""
    counted: Counter[str] = Counter()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (handler,), {"reads": counted})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
        configuration.retries = False
        yield counted, KubeApi(client.ApiClient(configuration), namespace="opd", context=None)
        server.shutdown()


@pytest.fixture
def reads() -> Iterator[tuple[Counter[str], KubeApi]]:
    with serving(Handler) as found:
        yield found


def test_what_groups_and_volumes_share_is_read_once(
    reads: tuple[Counter[str], KubeApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, api = reads
    monkeypatch.setenv(helm.HELM_VARIABLE, str(find("helm")))
    (tmp_path / "exp.yaml").write_text(EXPERIMENT)
    [item] = load_experiments(tmp_path / "exp.yaml", site=SITES["k3s"], env={}, image=DIGEST)
    chart = helm.find_chart("opd", ROOT / "charts")
    text = helm.template(item, chart=chart, namespace="opd")
    checks = check_cluster(api, item, text)
    assert {check.name for check in checks} >= {"storage", "claim"}
    assert any("/persistentvolumeclaims/shared" in path for path in counted)
    assert any("/storageclasses" in path for path in counted)
    assert {path: number for path, number in counted.items() if number > 1} == {}


@pytest.mark.parametrize("may_read", [True, False])
def test_what_several_cells_of_a_sweep_name_is_checked_once(
    reads: tuple[Counter[str], KubeApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_read: bool
) -> None:
    counted, api = reads
    monkeypatch.setattr(Handler, "may_read_secrets", may_read)
    monkeypatch.setenv(helm.HELM_VARIABLE, str(find("helm")))
    (tmp_path / "exp.yaml").write_text(EXPERIMENT)
    [item] = load_experiments(tmp_path / "exp.yaml", site=SITES["k3s"], env={}, image=DIGEST)
    rendered = Rendered(helm.template(item, chart=helm.find_chart("opd", ROOT / "charts"), namespace="opd"))
    checks = check_named(api, [(item, rendered), (item, rendered)])
    [secret] = [check for check in checks if "experiment-store" in check.message]
    assert secret.state == ("MISSING" if may_read else "not checked")
    if may_read:
        assert secret.message == "secret experiment-store (cluster.secrets.store) is not in namespace opd"
        assert secret.fix.startswith("kubectl create secret generic experiment-store -n opd")
    assert {path: number for path, number in counted.items() if number > 1} == {}


QUEUE = "{lifecycle: suspendable, queue: {manager: kueue, name: trainig}}"
KUEUE = "/apis/kueue.x-k8s.io"


class Refusing(Handler):
    """Knows pods, which a quota refuses, and one LocalQueue of another name."""

    def do_GET(self) -> None:
        queues = f"{KUEUE}/v1beta2/namespaces/opd/localqueues"
        if self.path == "/api/v1":
            self._answer(200, {"resources": [{"kind": "Pod", "name": "pods"}]})
        elif self.path == KUEUE:
            self._answer(200, {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}})
        elif self.path.startswith(f"{queues}?"):
            self._answer(200, {"items": [{"metadata": {"name": "training"}}], "metadata": {}})
        else:
            super().do_GET()

    def do_POST(self) -> None:
        if "dryRun=All" not in self.path:
            return super().do_POST()
        self.rfile.read(int(self.headers["Content-Length"]))
        message = 'pods "r-worker" is forbidden: exceeded quota: opd, requested: requests.nvidia.com/gpu=8'
        return self._answer(403, {"message": message, "reason": "Forbidden"})


def test_a_quota_that_is_used_up_is_a_warning_and_a_queue_that_is_not_there_is_missing_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(helm.HELM_VARIABLE, str(find("helm")))
    (tmp_path / "exp.yaml").write_text(
        f"kind: opd\nmodel: {{path: a/b}}\nteacher: {{path: a/c}}\ntrainer: {{gpus_per_node: 8}}\ncluster: {QUEUE}\n"
    )
    [item] = load_experiments(tmp_path / "exp.yaml", site=SITES["k3s"], env={}, image=DIGEST)
    text = helm.template(item, chart=helm.find_chart("opd", ROOT / "charts"), namespace="opd")
    with serving(Refusing) as (_, api):
        checks = check_cluster(api, item, text)
    quotas = [check for check in checks if check.name == "quota"]
    assert {check.state for check in quotas} == {"warning"}
    assert len(quotas) == 3
    assert all("exceeded quota: opd, requested: requests.nvidia.com/gpu=8" in check.message for check in quotas)
    [queue] = [check for check in checks if check.name == "queue"]
    assert (queue.state, queue.message) == (
        "MISSING", "there is no LocalQueue trainig in namespace opd: there is training"
    )  # fmt: skip
    assert any(check.name == "admission" and "RayJob" in check.message for check in checks)
