"""What runs promise when something breaks: recovery without a lost or doubled step, or an end that says why."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.promises.common import (
    NUM_FAULT_STEPS,
    Look,
    changes,
    clusters,
    ended,
    killed,
    log_shows_steps,
    override,
    rayjob,
    role_of,
    text,
    training_rows,
    tree,
    unannounced,
    whole,
)

LOST = override("faults.yaml", "trainer", "save_freq")  # most steps that a loss without notice may cost
# Of the scenario that loses submitters.
NUM_SUBMITTERS_LOST, NUM_MANY_STEPS, STORE_AWAY_S = 4, 70, 30.0


def _pods_of(folder: Path, run: str, role: str) -> list[str]:
    pods = changes(folder, run, "pods")
    names = [pod["metadata"]["name"] for pod in pods if role_of(pod) == role]
    return list(dict.fromkeys(names))


def _one_cluster(run: str, mode: str, **num_of: int) -> Look:
    """With so many pods of a role, the lost ones included."""

    def look(folder: Path) -> tuple[bool, str]:
        seen, names = rayjob(folder, run)["spec"]["submissionMode"], clusters(folder, run)
        pods = {role: _pods_of(folder, run, role) for role in num_of}
        ok = seen == mode and len(names) == 1 and num_of == {role: len(found) for role, found in pods.items()}
        return ok, "; ".join(
            [f"{seen}: {', '.join(names)}", *(f"{role}s {', '.join(of)}" for role, of in pods.items())]
        )

    return look


def _submitters(folder: Path) -> tuple[bool, str]:
    names = _pods_of(folder, "submitter-lost", "submitter")
    return len(names) == NUM_SUBMITTERS_LOST + 1, f"{len(names)} submitters one after the other"


def _store_was_away(folder: Path) -> tuple[bool, str]:
    proxy = tree(folder, "proxy.json")
    ok = proxy["num_refused"] > 0 and proxy["seconds"] >= STORE_AWAY_S
    return ok, f"{proxy['num_refused']} requests refused in {proxy['seconds']:.0f} s"


def _oom_killed(folder: Path) -> tuple[bool, str]:
    reasons = []
    for pod in changes(folder, "out-of-memory", "pods"):
        for status in pod["status"].get("containerStatuses", ()):
            ends = (status.get("state", {}).get("terminated"), status.get("lastState", {}).get("terminated"))
            reasons += [f"{pod['metadata']['name']}: {end['reason']}" for end in ends if end]
    found = sorted({reason for reason in reasons if "OOMKilled" in reason and "-worker-" in reason})
    return bool(found), ", ".join(found) or f"no OOMKilled among {sorted(set(reasons))}"


def _evicted(folder: Path) -> tuple[bool, str]:
    """The eviction API marks a pod's end with a condition."""
    found = {
        (pod["metadata"]["name"], condition["reason"])
        for pod in changes(folder, "evicted-preempted", "pods")
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "DisruptionTarget"
    }
    reasons = sorted(reason for name, reason in found if "-worker-" in name)
    return {"EvictionByEvictionAPI", "PreemptionByScheduler"} <= set(reasons), ", ".join(sorted(map(" ".join, found)))


def _suspended(folder: Path) -> tuple[bool, str]:
    seen = tree(folder, "while-suspended.json")
    phase = seen["rayjob"]["status"]["jobDeploymentStatus"]
    return phase == "Suspended" and not seen["pods"], f"{phase}, {len(seen['pods'])} pods"


def _says(run: str, word: str) -> Look:
    def look(folder: Path) -> tuple[bool, str]:
        lines = text(folder, f"{run}.status.txt").splitlines()
        found = [line.strip() for line in lines if word in line]
        return bool(found), found[0][:200] if found else f"nothing of {word}"

    return look


def _deadline_ended_it(folder: Path) -> tuple[bool, str]:
    status = rayjob(folder, "deadline")["status"]
    seen = f"{status['jobDeploymentStatus']}, {status.get('reason')}"
    left = [
        pod["metadata"]["name"]
        for pod in tree(folder, "deadline.pods.json")
        if "submitter" not in str(pod["metadata"]["labels"])
    ]
    return seen == "Failed, DeadlineExceeded" and not left, f"{seen}; pods left: {left or 'none'}"


def _last_checkpoint_kept(folder: Path) -> tuple[bool, str]:
    """Nothing that was trained is lost: the save before the deadline, or the one that the pods ask for at it."""
    names = text(folder, "deadline.s3.txt").split()
    saved = [int(name.split("global_step_")[1].split("/")[0]) for name in names if name.endswith("/COMPLETE")]
    trained = max(step for _, step in training_rows(folder, "deadline"))
    return bool(saved) and max(saved) == trained, f"saved {saved}, trained up to {trained}"


def _store_gone_is_said(folder: Path) -> tuple[bool, str]:
    lines = [line.strip() for line in text(folder, "store-gone.opdctl-logs.txt").splitlines()]
    found = [line for line in lines if "could not be stored" in line or "cannot be used" in line]
    return bool(found), (found or lines[-1:])[-1][:300]


def _volume_keeps_data(folder: Path) -> tuple[bool, str]:
    names = text(folder, "volume.txt").split()
    steps = sorted(
        {name.split("global_step_")[1].split("/")[0] for name in names if name.endswith("/COMPLETE")}, key=int
    )
    metrics = [name for name in names if name.endswith("metrics.jsonl")]
    ok = str(NUM_FAULT_STEPS) in steps and bool(metrics)
    return ok, f"complete steps {', '.join(steps)} and {len(metrics)} metrics files"


WORKER_LOST: dict[str, Look] = {
    "worker lost in mid-step: the RayJob SUCCEEDED": ended("worker-lost"),
    "worker lost: its Ray cluster goes on, with another worker": _one_cluster(
        "worker-lost", "K8sJobMode", head=1, worker=2
    ),
    "worker lost: no step lost or doubled, at most save_freq recomputed": whole(
        "worker-lost", num_attempts=2, most_recomputed=LOST
    ),
    "worker lost: without notice": unannounced("worker-lost"),
    "the kubelet is killed while the second attempt trains": killed("worker-lost", "kubelet", during="0002"),
    "kubelet killed: opdctl logs -f goes through it without a gap or repeat": log_shows_steps("worker-lost"),
}
HEAD_LOST: dict[str, Look] = {
    f"head lost, {mode}: {promise}": look
    for run, mode in (("head-lost-http", "HTTPMode"), ("head-lost-job", "K8sJobMode"))
    for promise, look in {
        "without notice": unannounced(run),
        "two attempts under one RayCluster": _one_cluster(run, mode, head=2),
        "the RayJob SUCCEEDED" + (", the operator killed meanwhile" if mode == "K8sJobMode" else ""): ended(run),
        "no step lost or doubled, at most save_freq recomputed": whole(run, num_attempts=2, most_recomputed=LOST),
    }.items()
}
HEAD_LOST["the operator is killed while the second attempt trains"] = killed(
    "head-lost-job", "ray-operator", during="0002"
)
SUBMITTER_LOST: dict[str, Look] = {
    "four submitters deleted, each followed by another": _submitters,
    "the store answered 503 for 30 s": _store_was_away,
    "submitters lost, store away: the RayJob SUCCEEDED": ended("submitter-lost"),
    "submitters lost, store away: one attempt, no step lost or doubled": whole(
        "submitter-lost", num_attempts=1, most_recomputed=0, last_step=NUM_MANY_STEPS
    ),
}
OUT_OF_MEMORY: dict[str, Look] = {
    "the worker is OOM-killed by its pod's limit": _oom_killed,
    "out of memory: the RayJob SUCCEEDED": ended("out-of-memory"),
    "out of memory: no step lost or doubled, at most save_freq recomputed": whole(
        "out-of-memory", num_attempts=2, most_recomputed=LOST
    ),
}
EVICTED_PREEMPTED: dict[str, Look] = {
    "a worker evicted, another preempted by a higher PriorityClass": _evicted,
    "evicted, preempted: the RayJob SUCCEEDED": ended("evicted-preempted"),
    "evicted, preempted: nothing recomputed": whole("evicted-preempted", num_attempts=3, most_recomputed=0),
}
SUSPENDED: dict[str, Look] = {
    "suspended: no pod left": _suspended,
    "resumed: the RayJob SUCCEEDED": ended("suspended"),
    "suspended and resumed: nothing recomputed": whole("suspended", num_attempts=2, most_recomputed=0),
}
UNINSTALLED: dict[str, Look] = {
    "uninstalled in mid-run and installed again: the RayJob SUCCEEDED": ended("reinstalled"),
    "uninstalled and installed again: nothing recomputed": whole("reinstalled", num_attempts=2, most_recomputed=0),
}
WAITING: dict[str, Look] = {
    "a bad image name: opdctl status says so": _says("no-image", "image pull: ErrImageNeverPull"),
    "an unschedulable request: opdctl status says so": _says("no-room", "Insufficient cpu"),
}
DEADLINE: dict[str, Look] = {
    "deadline exceeded: the cluster is deleted": _deadline_ended_it,
    "deadline exceeded: the last step is saved": _last_checkpoint_kept,
}
STORE_GONE: dict[str, Look] = {
    "store away for good: the run fails": ended("store-gone", "Failed, FAILED"),
    "store away for good: the log says so": _store_gone_is_said,
    "store away for good: the volume keeps the last checkpoint and the metrics": _volume_keeps_data,
}
