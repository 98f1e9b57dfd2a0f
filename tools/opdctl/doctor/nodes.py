"""A cluster's nodes as the scheduler sees them: what they offer, what is taken of it, and why one does not take a pod."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from opdctl.doctor.selectors import Amounts, Tree, add, amounts, in_words, matches, requests, tolerates

HOST_LABEL = "kubernetes.io/hostname"
ANY_ADDRESS = "0.0.0.0"
# The node controller's taints for what `is_cordoned` and `is_ready` say already.
_STATE_TAINTS = tuple(f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable"))


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A pod, as far as the others on its node, or in its zone, look at it."""

    namespace: str
    labels: Mapping[str, str]
    spec: Tree

    @classmethod
    def of(cls, pod: Tree) -> Guest:
        """That of a pod."""
        about = pod["metadata"]
        return cls(namespace=about["namespace"], labels=about.get("labels") or {}, spec=pod["spec"])


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node; `used` is what pods that run on it have requested."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Tree, ...]
    is_cordoned: bool
    is_ready: bool
    allocatable: Amounts
    used: Amounts
    guests: tuple[Guest, ...]

    @property
    def free(self) -> Amounts:
        """What a pod could still get."""
        return add(self.allocatable, self.used, times=-1)

    def with_pod(self, guest: Guest) -> Node:
        """The same with one more pod on it."""
        used = add(self.used, {**requests(guest.spec), "pods": Decimal(1)})
        return dataclasses.replace(self, used=used, guests=(*self.guests, guest))

    def emptied(self) -> Node:
        """One like it that a cloud would start: without pods, ready, not cordoned."""
        return dataclasses.replace(self, used={}, guests=(), is_cordoned=False, is_ready=True)


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """One reason why a node does not take a pod.

    Attributes:
        kind: what has to change for it.
        text: the reason, for people.
        subject: the taint itself, the label's key, or the resource.
    """

    kind: Literal["state", "taint", "label", "size", "use", "port", "volume", "rule"]
    text: str
    subject: Any = ""


def read_nodes(nodes: Iterable[Tree], pods: Iterable[Tree]) -> list[Node]:
    """Nodes with the pods that run on them; pods that have ended hold nothing."""
    guests: dict[str, list[Tree]] = {}
    for pod in pods:
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            guests.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
    return [_read(node, guests.get(node["metadata"]["name"], ())) for node in nodes]


def _read(node: Tree, pods: Iterable[Tree]) -> Node:
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    states = {item["type"]: item["status"] for item in status.get("conditions") or ()}
    found = Node(
        name=metadata["name"],
        labels={HOST_LABEL: metadata["name"], **(metadata.get("labels") or {})},
        taints=tuple(spec.get("taints") or ()),
        is_cordoned=bool(spec.get("unschedulable")),
        is_ready=states.get("Ready", "True") == "True",
        allocatable=amounts(status.get("allocatable")),
        used={},
        guests=(),
    )
    for pod in pods:
        found = found.with_pod(Guest.of(pod))
    return found


def obstacles(spec: Tree, node: Node) -> list[Obstacle]:
    """Everything about the node itself that keeps a pod of this spec off it; empty where it fits now."""
    return [*_state(node), *_taints(spec, node), *_labels(spec, node), *_room(spec, node), *_ports(spec, node)]


def is_chosen(spec: Tree, node: Node) -> bool:
    """Whether the pod's own selector and affinity want the node, whatever else keeps it off."""
    return not _labels(spec, node)


def _state(node: Node) -> list[Obstacle]:
    found = [Obstacle(kind="state", text="is cordoned", subject=node.name)] if node.is_cordoned else []
    return found if node.is_ready else [*found, Obstacle(kind="state", text="is not ready", subject=node.name)]


def needed_taints(node: Node) -> list[Tree]:
    """The taints that a pod must tolerate to run on the node, but for those of its state."""
    return [
        taint for taint in node.taints if taint["effect"] != "PreferNoSchedule" and taint["key"] not in _STATE_TAINTS
    ]


def _taints(spec: Tree, node: Node) -> list[Obstacle]:
    out = []
    for taint in needed_taints(node):
        if not tolerates(spec.get("tolerations") or (), taint):
            value = f"={taint['value']}" if taint.get("value") else ""
            text = f"its taint {taint['key']}{value}:{taint['effect']} is not tolerated"
            out.append(Obstacle(kind="taint", text=text, subject=taint))
    return out


def _labels(spec: Tree, node: Node) -> list[Obstacle]:
    out = []
    for key, wanted in (spec.get("nodeSelector") or {}).items():
        if node.labels.get(key) != wanted:
            has = f"is {node.labels[key]}" if key in node.labels else "is not there"
            out.append(Obstacle(kind="label", text=f"its label {key} {has}, the pod wants {wanted}", subject=key))
    terms = (required(spec, "nodeAffinity") or {}).get("nodeSelectorTerms")
    if terms is not None and not any(meets(term, node) for term in terms):
        keys = [item["key"] for term in terms for item in term.get("matchExpressions") or ()]
        text = f"the pod's node affinity ({', '.join(dict.fromkeys(keys))}) does not choose it"
        out.append(Obstacle(kind="label", text=text, subject="affinity"))
    return out


def meets(term: Tree, node: Node) -> bool:
    """Whether a node is one that a node selector's term chooses; an empty term chooses none."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return (
        bool(expressions or fields)
        and all(matches(item, node.labels) for item in expressions)
        and all(matches(item, {"metadata.name": node.name}) for item in fields)
    )


def required(spec: Tree, kind: str) -> Any:
    """The part of a pod's nodeAffinity, podAffinity or podAntiAffinity that must hold; None where there is none."""
    return ((spec.get("affinity") or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")


def _room(spec: Tree, node: Node) -> list[Obstacle]:
    out = []
    for name, wanted in {**requests(spec), "pods": Decimal(1)}.items():
        have, free = node.allocatable.get(name, Decimal()), node.free.get(name, Decimal())
        if free >= wanted or (name == "pods" and name not in node.allocatable):
            continue
        says = f"{name}: the pod wants {in_words(name, wanted)}, the node has {in_words(name, have)}"
        if have < wanted:
            out.append(Obstacle(kind="size", text=says, subject=name))
        else:
            used = in_words(name, node.used[name])
            out.append(Obstacle(kind="use", text=f"{says}, of which {used} are in use", subject=name))
    return out


def _ports(spec: Tree, node: Node) -> list[Obstacle]:
    taken = [port for guest in node.guests for port in _host_ports(guest.spec)]
    return [
        Obstacle(kind="port", text=f"its port {number}/{protocol} is taken", subject=number)
        for protocol, number, address in _host_ports(spec)
        if any((protocol, number) == other[:2] and _overlap(address, other[2]) for other in taken)
    ]


def _host_ports(spec: Tree) -> list[tuple[str, int, str]]:
    """(protocol, port, address) that a pod takes of its node: with hostNetwork every port of a container is one."""
    side_cars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    ports = [port for one in [*side_cars, *spec["containers"]] for port in one.get("ports") or ()]
    own = spec.get("hostNetwork", False)
    numbers = [(port, port.get("hostPort") or (port["containerPort"] if own else 0)) for port in ports]
    return [
        (port.get("protocol") or "TCP", number, port.get("hostIP") or ANY_ADDRESS) for port, number in numbers if number
    ]


def _overlap(one: str, other: str) -> bool:
    return one == other or ANY_ADDRESS in (one, other)
