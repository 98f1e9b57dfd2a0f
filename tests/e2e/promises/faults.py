"""What runs promise when something breaks: recovery without a lost or doubled step, or an end that says why."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.promises.common import (
    Look,
    changes,
    clusters,
    ended,
    killed,
    log_shows_steps,
    override,
    rayjob,
    role_of,
    soon_after,
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


WORKER_LOST: dict[str, Look] = {
    "worker lost in mid-step: the RayJob SUCCEEDED": ended("worker-lost"),
    "worker lost: its Ray cluster goes on, with another worker": _one_cluster(
        "worker-lost", "K8sJobMode", head=1, worker=2
    ),
    "worker lost: no step lost or doubled, at most save_freq recomputed": whole(
        "worker-lost", num_attempts=2, most_recomputed=LOST
    ),
    "worker lost: without notice": unannounced("worker-lost"),
    "worker lost: the next step ends in time": soon_after("worker-lost"),
    "the kubelet is killed while the second attempt trains": killed("worker-lost", "kubelet", during="0002"),
    "kubelet killed: opdctl logs -f goes through it without a gap or repeat": log_shows_steps("worker-lost"),
}
HEAD_LOST: dict[str, Look] = {
    f"head lost, {mode}: {promise}": look
    for run, mode in (("head-lost-http", "HTTPMode"), ("head-lost-job", "K8sJobMode"))
    for promise, look in {
        "without notice": unannounced(run),
        "the next step ends in time": soon_after(run),
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
EVICTED_PREEMPTED: dict[str, Look] = {
    "a worker evicted, another preempted by a higher PriorityClass": _evicted,
    "evicted, preempted: the RayJob SUCCEEDED": ended("evicted-preempted"),
    "evicted, preempted: nothing recomputed": whole("evicted-preempted", num_attempts=3, most_recomputed=0),
}
