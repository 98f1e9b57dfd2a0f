"""opdctl against a real control plane and operator: the life of a run from submit to delete, and every refusal in it."""

import pytest
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier.opdctl import Tool
from tests.fast_tier.runs import end, pods, reached
from tests.fast_tier.tier import ROOT

NAMESPACE = "opdctl"
# The tier has volumes for three claims of a namespace's runs: all runs but one share a claim.
SHARED = {"cluster": {"checkpoints": {"claim": "models"}}}


@pytest.fixture(scope="module")
def tool(tier, tmp_path_factory):
    tier.namespace(NAMESPACE)
    return Tool(tier, NAMESPACE, tmp_path_factory.mktemp("opdctl"))


def good(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(done, *, code=1):
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_run_from_submit_over_cancel_and_resume_to_delete(tier, tool):
    run = "life"
    text = good(tool.submit("quickstart", name=run))
    assert text.startswith("life  submitted")
    assert f"opdctl logs -f {run} -n {NAMESPACE}" in text
    reached(tier, NAMESPACE, run, "Running")
    tier.admin.until("all its pods are there", lambda: len(pods(tier, NAMESPACE, run)) == 3)

    seen = good(tool("status", run))
    assert "running" in seen
    assert all(role in seen for role in ("head", "worker", "submitter", "cpu-p"))

    assert "run life is live: running" in refused(tool.submit("quickstart", name=run))
    assert "seed: 1 -> 2" in refused(tool.submit("quickstart", "--set", "seed=2", name=run), code=2)
    assert "is live" in refused(tool("delete", run))

    claim = tier.admin.get("persistentvolumeclaim", f"{run}-checkpoints", namespace=NAMESPACE)
    assert "life  cancelled" in good(tool("cancel", run))
    assert not pods(tier, NAMESPACE, run)
    with pytest.raises(KubeError, match="not found"):
        tier.admin.get("rayjob", run, namespace=NAMESPACE)
    assert "no RayJob in namespace opdctl" in good(tool("status", run))

    assert good(tool.submit("quickstart", name=run)).startswith("life  resumed: its RayJob is gone")
    reached(tier, NAMESPACE, run, "Initializing", "Running")
    again = tier.admin.get("persistentvolumeclaim", f"{run}-checkpoints", namespace=NAMESPACE)
    assert again["metadata"]["uid"] == claim["metadata"]["uid"], "it resumes on the claim of before"

    good(tool("cancel", run))
    assert "claim life-checkpoints stays" in good(tool("delete", run))
    assert "say --yes" in refused(tool("delete", "--unused-claims"), code=2)
    assert "claim life-checkpoints deleted" in good(tool("delete", "--unused-claims", "--yes"))


def test_a_failed_run_is_resumed_and_the_name_of_a_succeeded_run_is_rejected(tier, tool):
    run = "ended"
    good(tool.submit("quickstart", layer=SHARED, name=run))
    reached(tier, NAMESPACE, run, "Running")
    end(
        tier,
        NAMESPACE,
        run,
        jobDeploymentStatus="Failed",
        jobStatus="FAILED",
        reason="AppFailed",
        message="exit code 1",
    )
    assert "failed: failed (FAILED): AppFailed: exit code 1" in refused(tool("wait", run, "--timeout", "60"))
    assert "resumed: the last RayJob ended: failed (FAILED)" in good(tool.submit("quickstart", layer=SHARED, name=run))
    reached(tier, NAMESPACE, run, "Running")
    end(tier, NAMESPACE, run, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    assert "has succeeded already" in refused(tool.submit("quickstart", layer=SHARED, name=run))
    good(tool("wait", run, "--timeout", "60"))
    good(tool("cancel", run))
    good(tool("delete", run))


def test_the_api_server_s_own_refusal_stops_a_submit_before_anything_is_installed(tier, tool):
    layer = {"cluster": {"extraVolumes": [{"name": "x", "hostPath": {"path": "/"}}]}}
    text = refused(tool.submit("quickstart", layer=layer, name="unsafe"), code=2)
    assert 'violates PodSecurity "restricted:latest"' in text
    assert "hostPath" in text
    assert "release: not found" in tier.helm(NAMESPACE, "status", "unsafe").stderr


def test_the_job_that_fills_a_claim_is_admitted_with_its_policy(tier, tool):
    tier.user(NAMESPACE).run("create", "-n", NAMESPACE, "-f", str(ROOT / "manifests/stage.yaml"))
    [made] = tier.admin.until(
        "its pod is there", lambda: tier.admin.items("pods", namespace=NAMESPACE, selector="opd/stage")
    )
    assert made["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "models"
    policies = tier.admin.items("networkpolicies", namespace=NAMESPACE)
    assert [one["spec"]["podSelector"]["matchLabels"] for one in policies if "opd/stage" in one["metadata"].get("labels", {})] == [
        {"opd/stage": made["metadata"]["labels"]["opd/stage"]}
    ]  # fmt: skip
    tier.user(NAMESPACE).run("delete", "jobs", "-l", "opd/stage", "-n", NAMESPACE)
