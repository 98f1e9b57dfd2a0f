"""What the cluster refuses or cannot place says why; live runs can be neither upgraded nor, with deletion rules, suspended."""

import pytest
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier.runs import install, installed, pods, reached

NAMESPACE = "refusals"


@pytest.fixture(scope="module", autouse=True)
def _namespace(tier):
    tier.namespace(NAMESPACE)


def test_a_run_over_quota_gets_no_worker_and_the_ray_cluster_says_which_quota(tier):
    tier.namespace("small", quota={"requests.nvidia.com/gpu": "4"})
    with installed(tier, "small", "opd-agent-travel"):
        reached(tier, "small", "opd-agent-travel", "Initializing")

        def refusal():
            events = tier.user("small").items("events", namespace="small")
            return [event["message"] for event in events if "exceeded quota" in event["message"]]

        [message, *_] = tier.admin.until("the quota refuses a worker", refusal)
        assert "exceeded quota: opd, requested: requests.nvidia.com/gpu=8" in message
        roles = {pod["metadata"]["labels"]["ray.io/node-type"] for pod in pods(tier, "small", "opd-agent-travel")}
        assert roles == {"head"}


def test_a_gpu_type_that_no_node_has_leaves_the_worker_pending_with_the_scheduler_s_reason(tier):
    with installed(tier, NAMESPACE, "eval-math", {"cluster": {"gpu": {"type": "NVIDIA-B300"}}}):

        def reason():
            workers = [pod for pod in pods(tier, NAMESPACE, "eval-math") if "worker" in pod["metadata"]["name"]]
            conditions = [found for pod in workers for found in pod["status"].get("conditions", ())]
            told = [found["message"] for found in conditions if found.get("reason") == "Unschedulable"]
            # While the claim that was installed with it is not bound yet, the scheduler names that first.
            return [message for message in told if "didn't match Pod's node affinity/selector" in message]

        [message] = tier.admin.until("the worker's GPU type is what keeps it waiting", reason)
        assert "didn't match Pod's node affinity/selector" in message


def test_suspending_a_run_with_deletion_rules_is_refused_and_the_run_goes_on(tier):
    with installed(tier, NAMESPACE, "quickstart"):
        before = reached(tier, NAMESPACE, "quickstart", "Running")
        with pytest.raises(KubeError, match="a RayJob with deletion rules cannot be suspended"):
            suspend(tier, "quickstart")
        assert reached(tier, NAMESPACE, "quickstart", "Running")["rayClusterName"] == before["rayClusterName"]


def test_a_suspendable_run_is_suspended_without_pods_and_resumes_in_a_new_cluster(tier):
    with installed(tier, NAMESPACE, "quickstart", {"cluster": {"lifecycle": "suspendable"}}):
        before = reached(tier, NAMESPACE, "quickstart", "Running")
        suspend(tier, "quickstart")
        reached(tier, NAMESPACE, "quickstart", "Suspended")
        tier.admin.until("its pods are gone", lambda: not pods(tier, NAMESPACE, "quickstart"))
        suspend(tier, "quickstart", value="false")
        after = reached(tier, NAMESPACE, "quickstart", "Running")
        assert after["rayClusterName"] != before["rayClusterName"]


def test_helm_upgrade_of_a_live_run_is_refused_with_the_way_to_resume(tier):
    with installed(tier, NAMESPACE, "quickstart"):
        uid = tier.admin.get("rayjob", "quickstart", namespace=NAMESPACE)["metadata"]["uid"]
        done = install(tier, NAMESPACE, "quickstart", verb="upgrade")
        assert done.returncode != 0
        assert "KubeRay ignores changes to the cluster of a live RayJob: one release is one run" in done.stderr
        assert tier.admin.get("rayjob", "quickstart", namespace=NAMESPACE)["metadata"]["uid"] == uid


def suspend(tier, run, *, value="true"):
    patch = f'{{"spec": {{"suspend": {value}}}}}'
    tier.user(NAMESPACE).run("patch", "rayjob", run, "-n", NAMESPACE, "--type=merge", "-p", patch)
