"""The time from a loss to the next optimizer step, judged from the evidence: which moments it is taken from, and when it is too long."""

import json

import pytest
from tests.e2e import table
from tests.e2e.promises import recovery
from tests.e2e.promises.common import judge

MIDNIGHT = 1795219200.0  # 2026-11-21T00:00:00Z
# Of the attempt that goes on: (part, seconds).
START = {"timing_start/claim_s": 2.0, "timing_start/Ray_s": 3.0}


def at(second):
    return f"2026-11-21T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def pod(name, role, *, started, ready=None, cluster="c", state=None, **metadata):
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": at(started)}]
    if ready is not None:
        conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": at(ready)}]
    status = {
        "conditions": conditions,
        "containerStatuses": [{"state": state or {"running": {"startedAt": at(started)}}}],
    }
    labels = {"app.kubernetes.io/component": role, "ray.io/cluster": cluster}
    return {"metadata": {"name": name, "labels": labels, **metadata}, "status": status}


# A Ray cluster whose head's container began at 10 and whose last pod was ready at 31.
FIRST = [
    pod("head", "head", started=10),
    pod("worker", "worker", started=20),
    pod("head", "head", started=10, ready=25),
    pod("worker", "worker", started=20, ready=31),
]


def watch(objects):
    return "".join(json.dumps({"type": "MODIFIED", "object": one}) for one in objects)


def evidence(folder, run, *, pods, jobs=(33,), claimed, row, step_s=4.0, stage="", attempt=2, **files):
    """Of a run that goes on as an attempt with one row; pods and starts of the job in order, times in seconds of the day."""
    place = f"{run}.store{stage}/attempts/{attempt:04}"
    jobs = [{"status": {"rayClusterName": "c", "rayJobInfo": {"startTime": at(second)}}} for second in jobs]
    rows = [
        {"step": 2, "time": MIDNIGHT + row - 1, "val-core/acc": 0.5},
        {"step": 3, "time": MIDNIGHT + row, "training/global_step": 3, "timing_s/step": step_s, **START},
    ]
    files |= {
        f"{run}.pods.watch": watch([*FIRST, *pods]),
        f"{run}.rayjobs.watch": watch([{"status": {}}, *jobs]),
        f"{place}/owner.json": json.dumps({"started_at_s": MIDNIGHT + claimed}),
        f"{place}/metrics.jsonl": "".join(json.dumps(one) + "\n" for one in rows),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def kill(name, second):
    return json.dumps({"pod": name, "num_processes": 9, "time": MIDNIGHT + second}) + "\n"


def loss_of(scenario, number=0):
    return recovery.LOSSES[scenario][number]


def lost_head(folder, *, row=181):
    evidence(
        folder, "head-lost-http", pods=[pod("head2", "head", started=102)], jobs=(33, 33, 118), claimed=131, row=row,
        **{"killed.jsonl": kill("another-head", 50) + kill("head-lost-http-head", 100)},
    )  # fmt: skip


def test_a_lost_head_is_taken_apart_from_the_kill_to_the_first_row(tmp_path):
    lost_head(tmp_path, row=150)
    assert recovery.breakdown(tmp_path, loss_of("head-lost")) == {
        "noticed, attempt ended": 0,
        "new pods": 2,
        "Ray's start": 16,
        "launcher and imports": 11,
        "claim": 2,
        "workers join": 3,
        "models and checkpoint": 12,
        "step": 4,
    }


def test_the_allowance_is_beyond_what_ray_needed_to_start_in_that_run(tmp_path):
    assert recovery.ALLOWANCE_S == 60.0
    for row, ok in ((181, True), (182, False)):  # 21 s of Ray's own from the kill at 100 on, and 60
        lost_head(tmp_path, row=row)
        first, _ = judge(recovery.promises("head-lost"), tmp_path)
        assert first.promise.startswith("head killed, HTTPMode: the next optimizer step ends within 60 s beyond")
        assert first.ok is ok
        assert f"{row - 100} s, Ray's own start 21 (" in first.observed


def test_a_worker_that_is_followed_in_its_cluster_needs_no_pod_and_no_start_of_ray(tmp_path):
    ended = {"worker-lost.store/attempts/0001/ended.json": json.dumps({"time_s": MIDNIGHT + 117})}
    evidence(
        tmp_path, "worker-lost", pods=[pod("worker2", "worker", started=103)], claimed=130, row=150,
        **{"killed.jsonl": kill("worker-lost-worker", 100)}, **ended,
    )  # fmt: skip
    parts = recovery.breakdown(tmp_path, loss_of("worker-lost"))
    assert parts["noticed, attempt ended"] == 17
    assert parts["new pods"] == parts["Ray's start"] == 0
    assert parts["launcher and imports"] == 11
    assert sum(parts.values()) == 50


@pytest.mark.parametrize(("number", "reason"), enumerate(("EvictionByEvictionAPI", "PreemptionByScheduler")))
def test_a_pod_that_is_asked_to_go_is_lost_when_it_is_asked(tmp_path, number, reason):
    going = pod("worker", "worker", started=20, deletionTimestamp=at(180), deletionGracePeriodSeconds=80)
    going["status"]["conditions"].append({"type": "DisruptionTarget", "reason": reason})
    unrelated = pod("worker0", "worker", started=20, deletionTimestamp=at(90), deletionGracePeriodSeconds=80)
    evidence(
        tmp_path, "evicted-preempted", pods=[unrelated, going], claimed=130, row=150, attempt=number + 2
    )  # fmt: skip
    assert sum(recovery.breakdown(tmp_path, loss_of("evicted-preempted", number)).values()) == 50


def test_a_container_without_memory_is_lost_when_the_kernel_ends_it(tmp_path):
    ends = [
        pod("worker", "worker", started=20, state={"terminated": {"reason": reason, "finishedAt": at(second), "startedAt": at(20)}})
        for reason, second in (("Error", 40), ("OOMKilled", 100), ("OOMKilled", 140))
    ]  # fmt: skip
    evidence(tmp_path, "out-of-memory", pods=ends, claimed=130, row=150)
    assert sum(recovery.breakdown(tmp_path, loss_of("out-of-memory")).values()) == 50


def test_a_suspended_run_is_timed_from_its_resume_and_needs_a_whole_ray_again(tmp_path):
    pods = [pod("head2", "head", started=103, ready=120, cluster="d")]
    evidence(
        tmp_path, "suspended", pods=pods, jobs=(33, 125), claimed=140, row=160, **{recovery.RESUMED: f'{{"time": {MIDNIGHT + 100}}}'}
    )  # fmt: skip
    parts = recovery.breakdown(tmp_path, loss_of("suspended"))
    assert (parts["new pods"], parts["Ray's start"], sum(parts.values())) == (3, 22, 60)


def test_of_a_pipeline_the_kill_inside_its_stage_counts(tmp_path):
    run = "pipeline-killed"
    evidence(
        tmp_path, run, pods=[], claimed=130, row=150, stage=f"/stages/{run}-distil",
        **{"killed.jsonl": kill(f"{run}-head1", 60) + kill(f"{run}-head2", 100)},
    )  # fmt: skip
    assert sum(recovery.breakdown(tmp_path, loss_of("pipeline")).values()) == 50


def test_the_table_has_a_row_for_each_loss_that_there_is_evidence_of(tmp_path):
    lost_head(tmp_path / "head-lost", row=150)
    rows = recovery.table(tmp_path)
    assert [row for row in rows if row.startswith("| head killed, HTTPMode |")] == [
        "| head killed, HTTPMode | 50 | 21 | 0 | 2 | 16 | 11 | 2 | 3 | 12 | 4 |"
    ]
    assert len(rows) == 3


def test_the_results_end_with_that_table(tmp_path):
    path = tmp_path / "RESULTS.md"
    row = {"scenario": "head-lost", "promise": "played", "observed": "in 9 s", "ok": True, "seconds": 9.0}
    table.write([row], recoveries=["| lost |", "| --- |", "| head |"], seconds=60.0, commit="c0ffee", path=path)
    lines = path.read_text().splitlines()
    assert "| head-lost | played | in 9 s | 9 | yes |" in lines
    assert lines[-4:] == ["", "| lost |", "| --- |", "| head |"]
