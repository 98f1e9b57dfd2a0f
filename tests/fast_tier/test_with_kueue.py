"""Kueue's own manager with the queue of manifests/cluster: admission, quota, preemption, and the messages to a user."""

import pytest
from tests.fast_tier.opdctl import Tool
from tests.fast_tier.runs import admitted, installed, is_active, pods, reached

NAMESPACE, EXPERIMENT, QUEUE = "queued", "quickstart", "training"
# Of the queue's 512 CPUs one such run takes more than half.
QUEUED = {
    "trainer": {"nnodes": 2},
    "teacher": {"path": "t", "serve": {}},
    "actor": {"ppo_micro_batch_size_per_gpu": 64},
    "cluster": {
        "lifecycle": "suspendable",
        "queue": {"manager": "kueue", "name": QUEUE},
        "checkpoints": {"accessMode": "ReadWriteMany"},
        "worker": {"requests": {"cpu": 150}},
    },
}
URGENT = {"cluster": {"queue": {"priorityClass": "urgent"}}}
KIND = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
PRIORITY = {**KIND, "metadata": {"name": "urgent"}, "value": 1000}


@pytest.fixture(scope="module", name="tier")
def tier_with_kueue(kueue_tier):
    return kueue_tier


@pytest.fixture(scope="module")
def tool(tier, tmp_path_factory):
    """opdctl in a namespace with the queue, which is ready."""
    # The pods of who goes and who comes overlap: what admits is the queue, not the namespace's own quota.
    tier.namespace(NAMESPACE, quota={"requests.cpu": "1024"}, components=["kueue"])
    tier.admin.create([PRIORITY])
    tier.admin.until("the queue is active", lambda: is_active(tier, NAMESPACE, QUEUE))
    return Tool(tier, NAMESPACE, tmp_path_factory.mktemp("kueue"))


def says(tier, tool, run, *words):
    """Waits until `opdctl status` of a run holds all words."""

    def told():
        text = tool("status", run).stdout
        return text if all(word in text for word in words) else None

    return tier.admin.until(f"status of {run} says {words}", told)


def test_a_run_is_admitted_one_over_quota_waits_and_one_of_higher_priority_takes_the_place(tier, tool):
    with installed(tier, NAMESPACE, EXPERIMENT, QUEUED, run="first"):
        before = reached(tier, NAMESPACE, "first", "Running")
        assert admitted(tier, NAMESPACE, "first") == {"head": 1, "worker": 2, "teacher": 1, "submitter": 1}

        with installed(tier, NAMESPACE, EXPERIMENT, QUEUED, run="second"):
            reached(tier, NAMESPACE, "second", "Suspended")
            assert tier.admin.get("rayjob", "second", namespace=NAMESPACE)["spec"]["suspend"] is True
            says(tier, tool, "second", f"suspended by Kueue: waits in queue {QUEUE}", "insufficient", "quota for cpu")
            assert not pods(tier, NAMESPACE, "second")

        with installed(tier, NAMESPACE, EXPERIMENT, QUEUED, URGENT, run="third"):
            reached(tier, NAMESPACE, "third", "Running")
            reached(tier, NAMESPACE, "first", "Suspended")
            says(tier, tool, "first", f"waits in queue {QUEUE}", "it was evicted (Preempted)")
            tier.admin.until("its pods are gone", lambda: not pods(tier, NAMESPACE, "first"))

        after = reached(tier, NAMESPACE, "first", "Running")
        assert after["rayClusterName"] != before["rayClusterName"], "it goes on in a Ray cluster of its own"
