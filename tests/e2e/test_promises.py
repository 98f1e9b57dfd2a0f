"""Judging a scenario from its evidence: what keeps a promise, what breaks it, and that a tampered copy is found."""

import json

import pytest
from tests.e2e.__main__ import verify
from tests.e2e.scenarios.evidence import hashes
from tests.e2e.scenarios.promises import judge

BAR = "████░░░░"
LOG = "starting from the beginning\n" + "".join(
    f"{BAR} step {step}/6  loss 2.5237  acc 0.562  entropy 0.169\n" for step in range(1, 7)
)
STORE = [
    "experiments/quickstart/quickstart/attempts/0001/driver.log",
    "experiments/quickstart/quickstart/attempts/0001/metrics.jsonl",
    "experiments/quickstart/quickstart/checkpoints/global_step_6/COMPLETE",
    "experiments/quickstart/quickstart/result.json",
    "experiments/quickstart/quickstart/run.json",
]
CLAIM = {"status": {"phase": "Bound"}}


@pytest.fixture
def folder(tmp_path):
    """Evidence of a run that kept every promise, and its summary."""
    place = tmp_path / "quickstart"
    place.mkdir()
    pods = [{"metadata": {"labels": {"app.kubernetes.io/component": role}}} for role in ("head", "worker", "submitter")]
    trees = {
        "pods-running.json": pods,
        "rayjob.json": {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}},
        "convert-rayjob.json": {"status": {"jobStatus": "SUCCEEDED"}},
        "after-ttl.json": {
            **{key: [] for key in ("rayjobs", "rayclusters", "pods")},
            "configmaps": [{}],
            "claims": [CLAIM],
            "release": "deployed",
        },
        "after-uninstall.json": {"configmaps": [], "claims": [CLAIM]},
    }
    model = ["config.json", "conversion.json", "model.safetensors", "tokenizer.json"]
    texts = {
        "kubectl-logs.txt": LOG,
        "s3.txt": "\n".join(STORE),
        "s3-after.txt": "\n".join(STORE),
        "s3-model.txt": "\n".join(f"experiments/quickstart/quickstart/model/{name}" for name in model),
        "collect.txt": "┃ run ┃ kind ┃ state ┃\n│ quickstart │ opd │ succeeded │ 1 │ 6/6 │\n",
    }
    for name, tree in trees.items():
        (place / name).write_text(json.dumps(tree))
    for name, text in texts.items():
        (place / name).write_text(text)
    rows = [promise.row("quickstart", 1.0) for promise in judge("quickstart", place)]
    (tmp_path / "summary.json").write_text(json.dumps(rows))
    (tmp_path / "hashes.json").write_text(json.dumps({"quickstart": hashes(place)}))
    return tmp_path


def broken(folder):
    return [promise.promise for promise in judge("quickstart", folder / "quickstart") if not promise.ok]


def edit(folder, name, old, new):
    path = folder / "quickstart" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_whole_run_keeps_every_promise_and_verifies(folder, capsys):
    assert broken(folder) == []
    assert verify(folder) == 0
    assert "8 promises" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "old", "new", "promise"),
    [
        ("kubectl-logs.txt", "step 3/6", "step 2/6", "kubectl logs -f shows one line a step"),
        ("pods-running.json", "worker", "head", "head, worker and submitter pods run"),
        ("rayjob.json", "SUCCEEDED", "FAILED", "the RayJob SUCCEEDED"),
        ("s3.txt", "COMPLETE", "PART", "result, metrics, log and a complete checkpoint are in S3"),
        ("collect.txt", "succeeded", "running", "opdctl collect prints the run"),
        ("after-ttl.json", '"pods": []', '"pods": [{}]', "after the TTL RayJob"),
        ("after-uninstall.json", "Bound", "Lost", "helm uninstall keeps the checkpoint claim and the store"),
        ("s3-model.txt", "model.safetensors", "model.partial", "the kind convert leaves the trained model in S3"),
    ],
)
def test_each_promise_can_be_broken(folder, name, old, new, promise):
    edit(folder, name, old, new)
    assert broken(folder)[0].startswith(promise)


def test_a_store_that_lost_an_object_breaks_the_promise_to_keep_it(folder):
    edit(folder, "s3-after.txt", STORE[0], "")
    assert broken(folder) == ["helm uninstall keeps the checkpoint claim and the store"]


def test_missing_evidence_breaks_its_promise_and_says_what_is_missing(folder):
    (folder / "quickstart" / "rayjob.json").unlink()
    [promise] = [one for one in judge("quickstart", folder / "quickstart") if not one.ok]
    assert "rayjob.json" in promise.observed


def test_a_change_that_breaks_no_promise_is_found_too(folder, capsys):
    edit(folder, "kubectl-logs.txt", "loss 2.5237", "loss 0.0001")
    assert verify(folder) == 1
    assert capsys.readouterr().out == "quickstart: the evidence is not what was judged\n"


def test_a_summary_that_claims_more_than_the_evidence_is_found(folder, capsys):
    edit(folder, "rayjob.json", "SUCCEEDED", "FAILED")
    (folder / "hashes.json").write_text(json.dumps({"quickstart": hashes(folder / "quickstart")}))
    assert verify(folder) == 1
    assert "the RayJob SUCCEEDED" in capsys.readouterr().out
