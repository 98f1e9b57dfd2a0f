"""Tests of the judges: evidence that keeps each promise, and evidence that breaks it."""

import json

import pytest
import yaml
from tests.e2e.promises.common import judge, training_rows
from tests.e2e.scenarios.registry import PROMISES

BAR = "████░░░░"
LOG = "starting from the beginning\n" + "".join(
    f"{BAR} step {step}/6  loss 2.5237  acc 0.562  entropy 0.169\n" for step in range(1, 7)
)
PREFIX = "experiments/e2e/opd-run"
STORE = [
    f"{PREFIX}/attempts/0001/driver.log",
    f"{PREFIX}/attempts/0001/metrics.jsonl",
    f"{PREFIX}/checkpoints/global_step_6/COMPLETE",
    f"{PREFIX}/result.json",
    f"{PREFIX}/run.json",
]
CLAIM = {"status": {"phase": "Bound"}}
MIDNIGHT = 1795219200.0  # 2026-11-21T00:00:00Z


def metrics(*steps):
    times = {"timing_s/step": 1.0, "timing_start/claim_s": 0.1, "timing_start/Ray_s": 0.1}
    return "".join(
        json.dumps({"step": step, "time": MIDNIGHT + 60 + step, "training/global_step": step, **times}) + "\n"
        for step in steps
    )


def pod(role, second, *, name="", run="opd-run"):
    """A pod that is there, runs and is ready at once."""
    at = f"2026-11-21T00:00:{second:02}Z"
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("PodScheduled", "Ready")]
    status = {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": [{"state": {"running": {"startedAt": at}}}],
    }
    labels = {"app.kubernetes.io/component": role, "ray.io/cluster": f"{run}-a"}
    return {"metadata": {"name": name or role, "labels": labels, "creationTimestamp": at}, "status": status}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def build(tmp_path):
    """Return evidence of a first scenario that kept every promise."""
    model = ["config.json", "conversion.json", "model.safetensors", "tokenizer.json"]
    done = {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}}
    events = [
        {"type": "ADDED", "object": pod(role, at)} for role, at in (("head", 1), ("worker", 2), ("submitter", 20))
    ]
    folder = tmp_path / "quickstart"
    write(
        folder,
        {
            "pods-running.json": [pod(role, 1) for role in ("head", "worker", "submitter")],
            "opd-run.rayjob.yaml": yaml.safe_dump(done),
            "convert.rayjob.yaml": yaml.safe_dump(done),
            "opd-run.pods.watch": "\n".join(json.dumps(event) for event in events),
            "opd-run.store/attempts/0001/owner.json": {"started_at_s": MIDNIGHT + 40},
            "opd-run.store/attempts/0001/metrics.jsonl": metrics(*range(1, 7)),
            "played.txt": "100",
            "after-ttl.json": {
                **{key: [] for key in ("rayjobs", "rayclusters", "pods")},
                "configmaps": [{}],
                "claims": [CLAIM],
                "release": "deployed",
            },
            "after-uninstall.json": {"configmaps": [], "claims": [CLAIM]},
            "kubectl-logs.txt": LOG,
            "opd-run.s3.txt": "\n".join(STORE),
            "s3-after.txt": "\n".join(STORE),
            "s3-model.txt": "\n".join(f"{PREFIX}/model/{name}" for name in model),
            "collect.txt": "┃ run ┃ kind ┃ state ┃\n│ opd-run │ opd │ succeeded │ 1 │ 6/6 │\n",
        },
    )
    return tmp_path


def broken(build, scenario="quickstart"):
    return [one.promise for one in judge(PROMISES[scenario], build / scenario) if not one.ok]


def edit(build, name, old, new):
    path = build / "quickstart" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_whole_run_keeps_every_promise(build):
    assert broken(build) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "promise"),
    [
        ("kubectl-logs.txt", "step 3/6", "step 2/6", "kubectl logs -f shows one line a step"),
        ("pods-running.json", 'component": "worker"', 'component": "head"', "head, worker and submitter pods run"),
        ("opd-run.rayjob.yaml", "SUCCEEDED", "FAILED", "the RayJob SUCCEEDED"),
        ("opd-run.s3.txt", "COMPLETE", "PART", "result, metrics, log and a complete checkpoint are in S3"),
        ("collect.txt", "succeeded", "running", "opdctl collect prints the run"),
        ("after-ttl.json", '"pods": []', '"pods": [{}]', "after the TTL RayJob"),
        ("after-uninstall.json", "Bound", "Lost", "helm uninstall keeps the checkpoint claim and the store"),
        ("s3-model.txt", "model.safetensors", "model.partial", "the kind convert leaves the trained model in S3"),
        ("s3-after.txt", STORE[0], "", "helm uninstall keeps the checkpoint claim and the store"),
    ],
)
def test_each_promise_can_be_broken(build, name, old, new, promise):
    edit(build, name, old, new)
    assert broken(build)[0].startswith(promise)


def test_missing_evidence_breaks_its_promise_and_says_what_is_missing(build):
    (build / "quickstart" / "opd-run.rayjob.yaml").unlink()
    [promise] = [one for one in judge(PROMISES["quickstart"], build / "quickstart") if not one.ok]
    assert "opd-run.rayjob.yaml" in promise.observed


def test_metrics_that_an_outage_has_cut_into_parts_are_read_whole(tmp_path):
    place = "run.store/attempts/0001"
    parts = {"metrics.jsonl": metrics(1), "metrics.jsonl.000001": metrics(2, 3), "owner.json": {}}
    write(tmp_path, {f"{place}/{name}": content for name, content in parts.items()})
    assert training_rows(tmp_path, "run") == [("0001", step) for step in (1, 2, 3)]


def test_every_scenario_promises_something_that_missing_evidence_breaks(tmp_path):
    for name, promises in PROMISES.items():
        assert promises
        assert not any(one.ok for one in judge(promises, tmp_path / name)), name
