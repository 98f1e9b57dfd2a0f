"""Doctor's word on where a run's pods go: each group's line, and what to change for the nodes that refuse it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opdctl.doctor.nodes import Node, Obstacle
from opdctl.doctor.placement import COMMON, Placement, describe, devices, relevant
from opdctl.doctor.report import Check, bad, good, unseen, warning

NAME = "placement"


def check_placement(
    placement: Placement, nodes: Sequence[Node], gpu: Mapping[str, Any] | None, *, autoscaler: str = ""
) -> Check:
    """Whether every pod of a group finds a node.

    Args:
        gpu: `cluster.gpu` with its defaults, to name its keys; None for a run without.
        autoscaler: what may add nodes here, empty where nothing is known to.
    """
    text = describe(placement, nodes)
    if placement.is_whole and (unjudged := placement.group.unjudged()):
        return unseen(
            NAME, f"{text}; not judged: {', '.join(unjudged)}", "the scheduler has the last word: opdctl status"
        )
    if placement.is_whole:
        return good(NAME, text)
    if autoscaler and placement.could_grow:
        labels = ", ".join(f"{key}={value}" for key, value in (placement.group.spec.get("nodeSelector") or {}).items())
        asks = placement.group.asks() + (f" and the label {labels}" if labels else "")
        fix = f"look that one of its node pools offers {asks}; the pods wait until the node has come"
        return warning(NAME, f"{text}; {autoscaler} may add nodes", fix)
    fixes = dict.fromkeys(_fixes(placement, nodes, gpu or {}))
    return bad(NAME, text, "; ".join(fixes))


def _fixes(placement: Placement, nodes: Sequence[Node], gpu: Mapping[str, Any]) -> Iterator[str]:
    role = placement.group.role
    found = [item for why in relevant(placement, nodes).values() for item in why]
    asked = devices(placement.group)
    if asked and not any(all(node.allocatable.get(name) for name in asked) for node in nodes):
        yield f"no node offers {' and '.join(asked)}: is its device plug-in running, or is cluster.gpu.resource another one?"
    for item in found:
        yield _fix(item, role, nodes, gpu)


def _fix(item: Obstacle, role: str, nodes: Sequence[Node], gpu: Mapping[str, Any]) -> str:
    if item.kind == "taint":
        taint = item.subject
        how = f"operator: Equal, value: {taint['value']}" if taint.get("value") else "operator: Exists"
        toleration = f"{{key: {taint['key']}, {how}, effect: {taint['effect']}}}"
        return f"tolerate it, if the nodes are meant for you: cluster.{role}.tolerations: [{toleration}]"
    if item.kind == "label":
        return _label_fix(item.subject, role, nodes, gpu)
    if item.kind == "size" and item.subject in COMMON:
        return f"lower cluster.{role}.requests.{item.subject} (a node keeps part of its own for the system), or use larger nodes"
    if item.kind == "size":
        return "lower trainer.gpus_per_node" if item.subject == gpu.get("resource") else f"ask for less {item.subject}"
    if item.kind == "port":
        return f"one pod a node has port {item.subject}: use another, or drop hostNetwork or hostPort, in cluster.{role}.podSpec"
    if item.kind == "volume":
        return f"use nodes where claim {item.subject} can be mounted, or one on storage that all zones share"
    if item.kind == "rule":
        return f"relax cluster.{role}.{item.subject}"
    if item.kind == "state":
        return f"`kubectl uncordon` the node or mend it: kubectl describe node {item.subject}"
    less = ", or lower trainer.nnodes or trainer.gpus_per_node" if role == "worker" else ""
    return f"wait for room, or add nodes{less}"


def _label_fix(key: str, role: str, nodes: Sequence[Node], gpu: Mapping[str, Any]) -> str:
    there = sorted({node.labels[key] for node in nodes if key in node.labels})
    known = f"nodes have {', '.join(there)}" if there else "no node has that label"
    if key == gpu.get("typeLabel"):
        return f"correct cluster.gpu.type or typeLabel ({known}), or remove the type for any GPU"
    if key == "affinity":
        return f"correct cluster.{role}.affinity"
    return f"correct cluster.{role}.nodeSelector ({known})"
