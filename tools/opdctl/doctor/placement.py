"""Whether a run's pods find nodes as these are now: they are placed one after the other, and who is left over says why.

The scheduler chooses among the nodes that fit by scores, which are not copied here: the smaller pods go where they take no
worker's place, so what is refused here has no place at all. What is not judged is named (`Group.unjudged`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from opdctl.doctor.neighbours import between_pods, unread_rules
from opdctl.doctor.nodes import Guest, Node, Obstacle, is_chosen, meets, obstacles
from opdctl.doctor.selectors import Tree, in_words, requests

# What every node has some of; anything else a pod asks for is a device.
COMMON = ("cpu", "memory", "ephemeral-storage", "pods")
MAX_NAMED = 3
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A claim of a pod and the node selector's terms of which one must hold; `terms` is None where nobody could look."""

    claim: str
    by: str
    terms: tuple[Tree, ...] | None

    def obstacle(self, node: Node) -> Obstacle | None:
        """Why the node cannot mount it."""
        if not self.terms or any(meets(term, node) for term in self.terms):
            return None
        places = [f"{item['key']} {', '.join(item.get('values') or ())}" for term in self.terms for item in term.get("matchExpressions") or ()]  # fmt: skip
        text = f"{self.by} of claim {self.claim} is for {' or '.join(dict.fromkeys(places)) or 'other nodes'}"
        return Obstacle(kind="volume", text=text, subject=self.claim)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Equal pods of a run; `pod` is one of them, with metadata and spec, `mounts` what its claims say of nodes."""

    role: str
    count: int
    pod: Tree
    mounts: tuple[Mount, ...] = ()

    @property
    def spec(self) -> Any:
        return self.pod["spec"]

    @property
    def guest(self) -> Guest:
        return Guest.of(self.pod)

    def unjudged(self) -> list[str]:
        """What else decides where such a pod may go, and is not looked at here."""
        found = [f"{name} of its rules" for name in unread_rules(self.spec)]
        found += [f"where claim {mount.claim} can be mounted" for mount in self.mounts if mount.terms is None]
        found += ["resourceClaims"] if self.spec.get("resourceClaims") else []
        scheduler = self.spec.get("schedulerName") or DEFAULT_SCHEDULER
        return found + ([f"the rules of scheduler {scheduler}"] if scheduler != DEFAULT_SCHEDULER else [])

    def asks(self) -> str:
        """`cpu 27, memory 213Gi, nvidia.com/gpu 8`"""
        asked = sorted(requests(self.spec).items(), key=lambda item: item[0] not in COMMON)
        return ", ".join(f"{name} {in_words(name, amount)}" for name, amount in asked if amount)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the pods of a group go, and for each node of the cluster why it takes no more of them."""

    group: Group
    on: tuple[str, ...]
    refusals: Mapping[str, tuple[Obstacle, ...]]
    could_grow: bool
    """A new node like one that there is, or of a kind that there is none of, would take one."""

    @property
    def is_whole(self) -> bool:
        return len(self.on) == self.group.count


def place(groups: Sequence[Group], nodes: Sequence[Node]) -> list[Placement]:
    """Places every pod, single ones first; returns what became of each group, in the order given."""
    state = {node.name: node for node in nodes}
    largest = max(groups, key=_weight, default=None)
    found = {}
    for group in sorted(groups, key=lambda group: group is largest):
        others = [largest] if largest is not None and group is not largest else []
        found[group.role] = _place(group, state, others)
    return [found[group.role] for group in groups]


def devices(group: Group) -> list[str]:
    """The extended resources that a pod asks for."""
    return [name for name, amount in requests(group.spec).items() if amount and name not in COMMON]


def _weight(group: Group) -> tuple[Decimal, Decimal]:
    asked = requests(group.spec)
    return sum((asked[name] for name in devices(group)), Decimal()), asked.get("cpu", Decimal())


def _place(group: Group, state: dict[str, Node], others: Sequence[Group]) -> Placement:
    on: list[str] = []
    while len(on) < group.count:
        free = [node for node in state.values() if not _why_not(group, node, state.values())]
        if not free:
            break
        # The same pods spread out; beside others, where they cost these the least.
        best = min(free, key=lambda node: (_loss(group, node, others), on.count(node.name), node.name))
        state[best.name] = best.with_pod(group.guest)
        on.append(best.name)
    refusals = {}
    if len(on) < group.count:
        refusals = {node.name: tuple(_why_not(group, node, state.values(), own=on)) for node in state.values()}
    chosen = [node for node in state.values() if is_chosen(group.spec, node)]
    could_grow = not chosen or any(not _of_node(group, node.emptied()) for node in chosen)
    return Placement(group=group, on=tuple(on), refusals=refusals, could_grow=could_grow)


def _why_not(group: Group, node: Node, nodes: Iterable[Node], *, own: Sequence[str] = ()) -> list[Obstacle]:
    found = _of_node(group, node)
    if node.name in own and any(item.kind == "use" for item in found):
        others = [item for item in found if item.kind != "use"]
        return [*others, Obstacle(kind="use", text=f"holds a {group.role} of this run already", subject="own")]
    return found or between_pods(group.guest, node, nodes)


def _of_node(group: Group, node: Node) -> list[Obstacle]:
    mounted = (mount.obstacle(node) for mount in group.mounts)
    return [*obstacles(group.spec, node), *(item for item in mounted if item is not None)]


def _loss(group: Group, node: Node, others: Sequence[Group]) -> int:
    after = node.with_pod(group.guest)
    return sum(_fitting(other, node) - _fitting(other, after) for other in others)


def _fitting(group: Group, node: Node) -> int:
    """How many pods of a group a node takes."""
    if _of_node(group, node):
        return 0
    asked = {name: amount for name, amount in requests(group.spec).items() if amount}
    return int(min((node.free.get(name, Decimal()) // amount for name, amount in asked.items()), default=group.count))


def describe(placement: Placement, nodes: Sequence[Node]) -> str:
    """One line: where the pods go, or how many do not, what each asks for, and what keeps each kind of node from it."""
    group = placement.group
    if placement.is_whole:
        return f"{group.role}: {group.count} of {group.count} on {_names(sorted(set(placement.on)))}"
    reasons = _reasons(placement, nodes)
    told = [f"{_names(names)}: {' and '.join(texts)}" for texts, names in reasons.items()]
    rest = len(placement.refusals) - sum(map(len, reasons.values()))
    lacking = " or ".join([*devices(group), "the labels that it wants"])
    told += [f"{rest} {'other ' if told else ''}node{'s have' if rest > 1 else ' has'} not {lacking}"] if rest else []
    wanted = f"{group.role}: {len(placement.on)} of {group.count} find a node (each wants {group.asks()})"
    return f"{wanted}: {'; '.join(told) or 'there are no nodes'}"


def relevant(placement: Placement, nodes: Sequence[Node]) -> dict[str, tuple[Obstacle, ...]]:
    """Node -> obstacles, of the nodes worth talking of: where some have the devices that are asked for, only those, where
    some have the labels too, only those."""
    wanted = devices(placement.group)
    with_devices = {node.name for node in nodes if all(node.allocatable.get(name) for name in wanted)}
    chosen = {node.name for node in nodes if is_chosen(placement.group.spec, node)}
    for names in (with_devices & chosen, with_devices, chosen):
        if names:
            return {name: why for name, why in placement.refusals.items() if name in names}
    return {} if wanted else dict(placement.refusals)


def _reasons(placement: Placement, nodes: Sequence[Node]) -> dict[tuple[str, ...], list[str]]:
    grouped: dict[tuple[str, ...], list[str]] = {}
    for name, why in relevant(placement, nodes).items():
        grouped.setdefault(tuple(item.text for item in why), []).append(name)
    return grouped


def _names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + rest
