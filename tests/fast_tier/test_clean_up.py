"""The clean-up after a failed run: deletion rules, in their order, and `helm uninstall`."""

import json

import pytest
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier.runs import installed, nodes_by_role, pods, reached

NAMESPACE = "clean-up"
RUN = "quickstart"
# Far enough apart that a controller which comes late does not find two of them due at once.
AFTER = {"workersSeconds": 1, "clusterSeconds": 16, "selfSeconds": 32}
ONE_TRY = {"cluster": {"retries": {"backoffLimit": 0, "submitterBackoffLimit": 0}, "cleanUp": {"failed": AFTER}}}


def test_a_failed_run_loses_workers_then_cluster_then_itself_and_keeps_release_and_claim(tier):
    tier.namespace(NAMESPACE)
    user = tier.user(NAMESPACE)
    with installed(tier, NAMESPACE, RUN, ONE_TRY):
        reached(tier, NAMESPACE, RUN, "Running")
        fail_pod(tier, "submitter")
        failed = reached(tier, NAMESPACE, RUN, "Failed")
        assert failed["reason"] == "SubmissionFailed"
        tier.admin.until("the workers go", lambda: "worker" not in nodes_by_role(tier, NAMESPACE, RUN))
        assert "head" in nodes_by_role(tier, NAMESPACE, RUN), "workers go first"
        tier.admin.until("the cluster goes", lambda: not user.items("rayclusters", namespace=NAMESPACE))
        assert user.get("rayjob", RUN, namespace=NAMESPACE)["status"]["jobDeploymentStatus"] == "Failed"
        tier.admin.until("the RayJob goes", lambda: not user.items("rayjobs", namespace=NAMESPACE))
        tier.admin.until("the submitter goes with it", lambda: not pods(tier, NAMESPACE, RUN))
        assert "STATUS: deployed" in tier.helm(NAMESPACE, "status", RUN).stdout
        assert user.get("configmap", RUN, namespace=NAMESPACE)
    with pytest.raises(KubeError, match="not found"):
        user.get("configmap", RUN, namespace=NAMESPACE)
    claim = user.get("persistentvolumeclaim", f"{RUN}-checkpoints", namespace=NAMESPACE)
    assert claim["status"]["phase"] == "Bound", "uninstall keeps the checkpoints"


def fail_pod(tier, role):
    """Report as kubelet does that a running pod's container ended with 1."""

    def running():
        up = [one for one in pods(tier, NAMESPACE, RUN) if one["status"].get("phase") == "Running"]
        return [one for one in up if one["metadata"]["labels"]["app.kubernetes.io/component"] == role]

    [pod] = tier.admin.until(f"the {role} runs", running)
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    statuses = [{**one, "ready": False, "state": ended} for one in pod["status"]["containerStatuses"]]
    pod["status"] |= {"phase": "Failed", "containerStatuses": statuses}
    name = pod["metadata"]["name"]
    tier.admin.run("replace", "--subresource=status", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(pod))
    assert tier.admin.get("pod", name, namespace=NAMESPACE)["status"]["phase"] == "Failed"
