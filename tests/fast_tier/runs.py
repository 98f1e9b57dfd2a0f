"""Installs experiments with the real helm as an `opd-user` would, and looks at what became of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.charts.helm import CHARTS, EXPERIMENTS, IMAGE, kind_of
from tests.e2e.cluster.kube import Tree
from tests.fast_tier.tier import FastTier

RUN_LABEL, ROLE_LABEL = "opd/run-id", "app.kubernetes.io/component"


def layers(folder: Path, *trees: dict[str, Any]) -> list[str | Path]:
    """Write the image's values and others to files; return the words that have helm or opdctl read them in this order."""
    words: list[str | Path] = []
    for number, tree in enumerate((IMAGE, *trees)):
        path = folder / f"layer-{number}.json"
        path.write_text(json.dumps(tree))
        words += ["-f", path]
    return words


@contextmanager
def installed(tier: FastTier, namespace: str, experiment: str, *trees: dict[str, Any], run: str = "") -> Iterator[str]:
    """A release of an experiment with trees of values over it; yields its name, uninstalls and waits for its pods to go."""
    run = run or experiment
    values = ["-f", EXPERIMENTS[experiment], *layers(tier.folder / "namespaces" / namespace, *trees)]
    done = tier.helm(namespace, "install", run, CHARTS / kind_of(experiment), *values)
    assert done.returncode == 0, done.stderr
    try:
        yield run
    finally:
        tier.helm(namespace, "uninstall", run)
        tier.admin.until(f"the pods of {run} are gone", lambda: not pods(tier, namespace, run))


def pods(tier: FastTier, namespace: str, run: str) -> list[Tree]:
    """All pods of a run that are not on their way out."""
    found = tier.admin.items("pods", namespace=namespace, selector=f"{RUN_LABEL}={run}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def nodes_by_role(tier: FastTier, namespace: str, run: str) -> dict[str, list[str]]:
    """Role -> the nodes that its pods are bound to, "" for a pod that is bound to none."""
    found: dict[str, list[str]] = {}
    for pod in pods(tier, namespace, run):
        role = pod["metadata"]["labels"][ROLE_LABEL]
        found.setdefault(role, []).append(pod["spec"].get("nodeName", ""))
    return {role: sorted(names) for role, names in found.items()}


def status(tier: FastTier, namespace: str, run: str) -> Tree:
    """The RayJob's status."""
    return tier.admin.get("rayjob", run, namespace=namespace).get("status", {})


def reached(tier: FastTier, namespace: str, run: str, *states: str, timeout_s: float = 300) -> Tree:
    """The RayJob's status once its jobDeploymentStatus is one of these."""

    def look() -> Tree | None:
        seen = status(tier, namespace, run)
        return seen if seen.get("jobDeploymentStatus") in states else None

    return tier.admin.until(f"{run} is {' or '.join(states)}", look, timeout_s=timeout_s)


def end(tier: FastTier, namespace: str, run: str, **status: str) -> None:
    """Write what KubeRay writes at the end of a job: here no Ray answers, so KubeRay does not."""
    tree = tier.admin.get("rayjob", run, namespace=namespace)
    tree["status"] |= status
    tier.admin.run("replace", "--subresource=status", "-n", namespace, "-f", "-", stdin=json.dumps(tree))


def is_active(tier: FastTier, namespace: str, queue: str) -> bool:
    """Return True if Kueue admits to a LocalQueue."""
    return "Active" in _true_conditions(tier.admin.get("localqueue", queue, namespace=namespace))


def admitted(tier: FastTier, namespace: str, run: str) -> dict[str, int]:
    """The pods that Kueue has admitted of a run, by its pod sets' names; empty as long as it has not."""
    for workload in tier.user(namespace).items("workloads", namespace=namespace):
        owner = workload["metadata"]["ownerReferences"][0]
        if (owner["kind"], owner["name"]) == ("RayJob", run) and "Admitted" in _true_conditions(workload):
            return {pod_set["name"]: pod_set["count"] for pod_set in workload["spec"]["podSets"]}
    return {}


def _true_conditions(tree: Tree) -> set[str]:
    return {one["type"] for one in tree.get("status", {}).get("conditions", ()) if one["status"] == "True"}
