"""Checks of what a rendered run names: each object once, in doctor and submit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.charts.helm import DIGEST, SITES
from tests.opdctl.kube.conftest import FakeApi, Tree

from gotools import find
from opdctl.chart import helm
from opdctl.chart.values import load_experiments
from opdctl.doctor import check_cluster, check_named
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


def answer(method: str, path: str, query: dict[str, Any], *, may_read_secrets: bool = True) -> tuple[int, Tree] | None:
    """A cluster with the claim `shared`, which gives every right and shows no storage classes."""
    if method == "POST":
        return 201, {"status": {"allowed": True}}
    if path.endswith("/persistentvolumeclaims/shared"):
        return 200, CLAIM
    if "/storageclasses" in path or ("/secrets/" in path and not may_read_secrets):
        return 403, {"message": f"{path} is forbidden"}
    if "limit" in query:
        return 200, {"items": []}
    return (200, {"gitVersion": "v1"}) if path in ("/version", "/api/v1/namespaces/opd") else None


@pytest.fixture
def rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Read and render an experiment over the site k3s."""
    monkeypatch.setenv(helm.HELM_VARIABLE, str(find("helm")))

    def render(text: str) -> str:
        (tmp_path / "exp.yaml").write_text(text)
        [item] = load_experiments(
            tmp_path / "exp.yaml", site=SITES["k3s"], env={}, sets=[f"cluster.image.ref={DIGEST}"]
        )
        return helm.template(item, namespace="opd")

    return render


@pytest.mark.parametrize("may_read", [True, False])
def test_what_groups_and_cells_of_a_sweep_name_is_checked_once(rendered: Callable, may_read: bool) -> None:
    text = rendered(EXPERIMENT)
    api = FakeApi(partial(answer, may_read_secrets=may_read))
    checks = check_named(api, [Rendered(text)] * 2)
    assert {check.name for check in checks} >= {"storage", "claim"}
    [secret] = [check for check in checks if "experiment-store" in check.message]
    assert secret.state == ("MISSING" if may_read else "not checked")
    assert not may_read or secret.fix.startswith("kubectl create secret generic experiment-store -n opd")
    paths = [path for _, path, _ in api.asked]
    assert len(paths) == len(set(paths))


QUEUE = "{lifecycle: suspendable, queue: {manager: kueue, name: trainig}}"


def refusing(method: str, path: str, query: dict[str, Any]) -> tuple[int, Tree] | None:
    """A cluster whose quota rejects each pod, without KubeRay and Kueue."""
    if "dryRun" not in query:
        return answer(method, path, query)
    message = 'pods "r-worker" is forbidden: exceeded quota: opd, requested: requests.nvidia.com/gpu=8'
    return (403, {"message": message}) if path.endswith("/pods") else None


def test_a_used_up_quota_is_a_warning_and_a_missing_queue_is_named(rendered: Callable) -> None:
    names = "model: {path: a/b}\nteacher: {path: a/c}"
    text = rendered(f"kind: opd\n{names}\ntrainer: {{gpus_per_node: 8}}\ncluster: {QUEUE}\n")
    checks = check_cluster(FakeApi(refusing), text)
    quotas = [check for check in checks if check.name == "quota"]
    assert [check.state for check in quotas] == ["warning"] * 3
    assert all("exceeded quota: opd, requested: requests.nvidia.com/gpu=8" in check.message for check in quotas)
    [queue] = [check for check in checks if check.name == "queue"]
    assert (queue.state, queue.message) == ("MISSING", "queue trainig is not in namespace opd")
    assert any(check.name == "admission" and "RayJob" in check.message for check in checks)
