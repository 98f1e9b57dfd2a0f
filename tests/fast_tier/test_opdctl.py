"""opdctl against a real control plane and operator: the life of a run from submit to delete, and every refusal in it."""

import pytest
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier.opdctl import Tool
from tests.fast_tier.runs import end, pods, reached
from tests.programs import need
from tests.runs.s3.server import clear_clients, environment, running_server

from opd.experiment import dump_spec, identity, load_text, spec_hash
from opd.runs.attempts import attempt_prefix
from opd.runs.run import Run

NAMESPACE = "opdctl"


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
    return done.stdout + done.stderr


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
    assert "say --yes" in refused(tool("delete", run, "--claim"), code=2)
    assert "claim life-checkpoints deleted" in good(tool("delete", run, "--claim", "--yes"))


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """The variables of an S3 server, in this process, too."""
    need("versitygw", build=True)
    with running_server(tmp_path) as port:
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)
        clear_clients()
        yield environment(port)


def attempt(tier, run, folder, steps, *, result=None, fatal=None):
    """Write to the store as the driver of a run's next attempt does, and end its RayJob as KubeRay does."""
    config = tier.admin.get("configmap", run, namespace=NAMESPACE)
    spec = load_text(config["data"]["exp.json"], origin="exp.json", is_json=True).spec
    tree = dump_spec(spec)
    with Run.open(run_id=run, local_root=folder, spec=tree, spec_hash=spec_hash(spec), store_url=spec.store.url,
                  identity=identity(spec), tee=False) as open_run:  # fmt: skip
        for step in steps:
            open_run.log(step, {"opd/loss": 1 / step, "opd/accuracy": step / 10})
        lines = [*(f"step {step}/4" for step in steps), fatal or "done", ""]
        open_run.stores[0].put(f"{attempt_prefix(open_run.attempt)}/driver.log", "\n".join(lines).encode())
        if fatal:
            open_run.fail(fatal, fatal=True)
        else:
            open_run.finish(result)
    words = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": "exit code 2"}
    end(tier, NAMESPACE, run, **(words if fatal else {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}))


@pytest.mark.usefixtures("tool")  # which makes the namespace
def test_a_day_s_work_from_doctor_over_a_mended_and_retried_run_to_its_results(tier, s3, tmp_path):
    """Doctor, submit, status, logs; a run that ends for good is mended and retried; collect, delete, claims pruned."""
    day, run = Tool(tier, NAMESPACE, tmp_path, **s3), "day"
    layer = {"store": {"url": "s3://runs/opd", "endpoint": "http://minio.minio.svc:9000"}, "trainer": {"total_steps": 4},
             "cluster": {"secrets": {"store": "experiment-store"}}}  # fmt: skip
    text = refused(day.submit("quickstart", layer=layer, name=run, verb="doctor"))
    assert "MISSING     secret    secret experiment-store is not in namespace opdctl" in text
    words = ("create", "secret", "generic", "experiment-store", "-n", NAMESPACE)
    tier.user(NAMESPACE).run(*words, "--from-literal=AWS_ACCESS_KEY_ID=id", "--from-literal=AWS_SECRET_ACCESS_KEY=s")
    good(day.submit("quickstart", layer=layer, name=run, verb="doctor"))

    good(day.submit("quickstart", layer=layer, name=run))
    reached(tier, NAMESPACE, run, "Running")
    assert "running" in good(day("status", run))
    attempt(tier, run, tmp_path / "pod", (1, 2), fatal="data.train: /data/nope.parquet: there is no such file")
    reached(tier, NAMESPACE, run, "Failed", "Complete")
    assert "no such file" in good(day("status", run))
    assert good(day("logs", run, "--tail", "2")) == "step 2/4\ndata.train: /data/nope.parquet: there is no such file\n"

    assert "submit it again with --retry" in refused(day.submit("quickstart", layer=layer, name=run))
    assert "day  resumed: it had ended for good" in good(day.submit("quickstart", "--retry", layer=layer, name=run))
    reached(tier, NAMESPACE, run, "Running")
    attempt(tier, run, tmp_path / "pod", (3, 4), result={"steps": 4})
    reached(tier, NAMESPACE, run, "Complete")
    assert "day  succeeded  4/4" in good(day("list"))
    assert "has succeeded already" in refused(day.submit("quickstart", layer=layer, name=run))
    good(day("collect", run, "-f", "day.csv"))
    steps = [line.split(",")[1] for line in (tmp_path / "day.csv").read_text().splitlines()]
    assert steps == ['"step"', "1", "2", "3", "4"]
    good(day("report", run, "-f", "day.html"))
    assert "claim day-checkpoints stays" in good(day("delete", run))


def test_the_api_server_s_own_refusal_stops_a_submit_before_anything_is_installed(tier, tool):
    volumes = [{"name": "x", "hostPath": {"path": "/"}}]
    layer = {"cluster": {"extraVolumes": volumes, "podSecurity": {"acceptUnrestricted": True}}}
    text = refused(tool.submit("quickstart", layer=layer, name="unsafe"), code=2)
    assert 'violates PodSecurity "restricted:latest"' in text
    assert "hostPath" in text
    assert "release: not found" in tier.helm(NAMESPACE, "status", "unsafe").stderr
