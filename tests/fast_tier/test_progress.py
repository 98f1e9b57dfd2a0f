"""`cluster.progress` on a real API server: the run's own account writes the one object."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import yaml
from tests.fast_tier.opdctl import Tool
from tests.fast_tier.runs import reached

from opd.runs.headline import Score
from opd.runs.reporter import ProgressConfigMap, Snapshot

NAMESPACE, RUN = "progress", "told"
OBJECT = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{RUN}-progress"
LAYER = {"cluster": {"checkpoints": {"claim": "models"}, "progress": {"enabled": True}}}
NOW = Snapshot(
    attempt=2,
    phase="rollout",
    step=7,
    total_steps=40,
    eta_s=600.0,
    score=Score(0.625, is_share=True),
    loss=0.5,
    progress_at_s=1.0,
)


@pytest.fixture(scope="module")
def tool(tier, tmp_path_factory):
    """opdctl in a namespace with a submitted run that keeps its progress; doctor and submit tried every object before."""
    tier.namespace(NAMESPACE, components=["progress"])
    tool = Tool(tier, NAMESPACE, tmp_path_factory.mktemp("progress"))
    done = tool.submit("quickstart", layer=LAYER, name=RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    reached(tier, NAMESPACE, RUN, "Running")
    return tool


@pytest.fixture(scope="module")
def account(tier, tool):
    """The kubeconfig of the run's own account, as its token in the head is."""
    path = tier.plane.account_kubeconfig(RUN, namespace=NAMESPACE)
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def written(tier, account, tmp_path_factory):
    """The head's ConfigMap after the run has said how it stands."""
    folder = tmp_path_factory.mktemp("credentials")
    (folder / "token").write_text(account["users"][0]["user"]["token"])
    (folder / "ca.crt").write_bytes(tier.plane.authority.certificate.read_bytes())
    server = urlsplit(account["clusters"][0]["cluster"]["server"])
    tell = ProgressConfigMap(OBJECT, host=server.hostname, port=server.port, folder=folder)
    tell(Snapshot(attempt=2, phase="start", step=0, score=Score(0.1, is_share=True)))
    tell(NOW)
    return tell


def test_the_run_s_account_may_patch_its_own_object_and_nothing_else(tier, written):
    other = OBJECT.removesuffix("-progress")
    tell = ProgressConfigMap(other, host=written._host, port=written._port, folder=written._folder)
    with pytest.raises(OSError, match="answers 403"):
        tell(NOW)
    account = f"--as=system:serviceaccount:{NAMESPACE}:{RUN}"
    rights = tier.admin.run("auth", "can-i", "--list", "-n", NAMESPACE, account)
    [line] = [line for line in rights.splitlines() if line.startswith("configmaps")]
    assert line.split() == ["configmaps", "[]", f"[{RUN}-progress]", "[get", "patch]"]


def test_what_is_no_longer_known_is_taken_out(tier, written):
    written(Snapshot(attempt=3, phase="start", step=0))
    data = tier.admin.get("configmap", f"{RUN}-progress", namespace=NAMESPACE)["data"]
    assert data.keys() == {"attempt", "phase", "step", "updatedAt"}
