"""Live runs can be neither upgraded nor, with deletion rules, suspended."""

import pytest
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier.runs import install, installed, reached

NAMESPACE = "refusals"


@pytest.fixture(scope="module", autouse=True)
def _namespace(tier):
    tier.namespace(NAMESPACE)


def test_suspending_a_run_with_deletion_rules_is_refused_and_the_run_goes_on(tier):
    with installed(tier, NAMESPACE, "quickstart"):
        before = reached(tier, NAMESPACE, "quickstart", "Running")
        with pytest.raises(KubeError, match="a RayJob with deletion rules cannot be suspended"):
            suspend(tier, "quickstart")
        assert reached(tier, NAMESPACE, "quickstart", "Running")["rayClusterName"] == before["rayClusterName"]


def test_helm_upgrade_of_a_live_run_is_refused_with_the_way_to_resume(tier):
    with installed(tier, NAMESPACE, "quickstart"):
        uid = tier.admin.get("rayjob", "quickstart", namespace=NAMESPACE)["metadata"]["uid"]
        done = install(tier, NAMESPACE, "quickstart", verb="upgrade")
        assert done.returncode != 0
        assert "KubeRay ignores changes to the cluster of a live RayJob: one release is one run" in done.stderr
        assert tier.admin.get("rayjob", "quickstart", namespace=NAMESPACE)["metadata"]["uid"] == uid


def suspend(tier, run):
    patch = '{"spec": {"suspend": true}}'
    tier.user(NAMESPACE).run("patch", "rayjob", run, "-n", NAMESPACE, "--type=merge", "-p", patch)
