"""Live runs with deletion rules cannot be suspended."""

import pytest
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier.runs import installed, reached

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


def suspend(tier, run):
    patch = '{"spec": {"suspend": true}}'
    tier.user(NAMESPACE).run("patch", "rayjob", run, "-n", NAMESPACE, "--type=merge", "-p", patch)
