"""Rules between pods, as the scheduler applies them: spread constraints that must hold, required pod affinity and anti-affinity."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from opdctl.doctor.nodes import Guest, Node, Obstacle, is_chosen, required
from opdctl.doctor.selectors import Tree, selects

# What depends on more than the pods that a person may see, or on values of the pod's own labels.
_UNREAD = ("namespaces", "namespaceSelector", "matchLabelKeys", "mismatchLabelKeys")


def between_pods(guest: Guest, node: Node, nodes: Iterable[Node]) -> list[Obstacle]:
    """The rules, the pod's own and those of pods that run, that keep a pod off a node."""
    everywhere = list(nodes)
    return [*_spread(guest, node, everywhere), *_apart(guest, node, everywhere), *_together(guest, node, everywhere)]


def unread_rules(spec: Tree) -> list[str]:
    """Fields of a pod's rules for whose sake these are not judged here."""
    rules = [
        *_terms(spec, "podAffinity"),
        *_terms(spec, "podAntiAffinity"),
        *(spec.get("topologySpreadConstraints") or ()),
    ]
    return [name for name in _UNREAD if any(rule.get(name) is not None for rule in rules)]


def _spread(guest: Guest, node: Node, nodes: Sequence[Node]) -> Iterator[Obstacle]:
    chosen = [one for one in nodes if is_chosen(guest.spec, one)]
    for rule in filter(_is_read, guest.spec.get("topologySpreadConstraints") or ()):
        if rule.get("whenUnsatisfiable", "DoNotSchedule") != "DoNotSchedule":
            continue
        counts = _by_domain(rule, chosen, partial(_is_meant, rule, guest))
        own = counts.get(node.labels.get(rule["topologyKey"], ""))
        selected = selects(rule.get("labelSelector"), guest.labels)
        if own is None or own + selected - min(counts.values()) > rule.get("maxSkew", 1):
            text = f"its spread constraint over {rule['topologyKey']} allows no more there"
            yield Obstacle(kind="rule", text=text, subject="topologySpreadConstraints")


def _apart(guest: Guest, node: Node, nodes: Sequence[Node]) -> Iterator[Obstacle]:
    for rule in filter(_is_read, _terms(guest.spec, "podAntiAffinity")):
        if _near(rule, node, nodes, partial(_is_meant, rule, guest)):
            text = f"its pod anti-affinity over {rule['topologyKey']} keeps it away from a pod that is there"
            yield Obstacle(kind="rule", text=text, subject="affinity")
    for other in (one for at in nodes for one in at.guests):
        for rule in _terms(other.spec, "podAntiAffinity"):
            if _is_meant(rule, other, guest) and _near(rule, node, nodes, partial(operator.is_, other)):
                text = f"the pod anti-affinity over {rule['topologyKey']} of a pod that is there keeps it away"
                yield Obstacle(kind="rule", text=text, subject="affinity")


def _together(guest: Guest, node: Node, nodes: Sequence[Node]) -> Iterator[Obstacle]:
    rules = list(filter(_is_read, _terms(guest.spec, "podAffinity")))

    def is_wanted(one: Guest) -> bool:
        return all(_is_meant(rule, guest, one) for rule in rules)

    # The first of pods that want to be beside each other may go anywhere.
    is_first = is_wanted(guest) and not any(is_wanted(one) for at in nodes for one in at.guests)
    for rule in rules:
        if not (rule["topologyKey"] in node.labels if is_first else _near(rule, node, nodes, is_wanted)):
            text = f"its pod affinity over {rule['topologyKey']} finds no pod there that it wants to be beside"
            yield Obstacle(kind="rule", text=text, subject="affinity")


def _terms(spec: Tree, kind: str) -> list[Tree]:
    return list(required(spec, kind) or ())


def _is_read(rule: Tree) -> bool:
    return all(rule.get(name) is None for name in _UNREAD)


def _is_meant(rule: Tree, owner: Guest, other: Guest) -> bool:
    """Whether a rule of one pod speaks of another; of namespaces it names some, all, or its own."""
    is_there = rule.get("namespaceSelector") == {} or other.namespace in (rule.get("namespaces") or (owner.namespace,))
    return is_there and selects(rule.get("labelSelector"), other.labels)


def _near(rule: Tree, node: Node, nodes: Sequence[Node], is_counted: Callable[[Guest], bool]) -> bool:
    return bool(_by_domain(rule, nodes, is_counted).get(node.labels.get(rule["topologyKey"], ""), 0))


def _by_domain(rule: Tree, nodes: Iterable[Node], is_counted: Callable[[Guest], bool]) -> dict[str, int]:
    """Value of the rule's topology label -> how many pods count there."""
    counts: dict[str, int] = {}
    for node in nodes:
        domain = node.labels.get(rule["topologyKey"])
        if domain is not None:
            counts[domain] = counts.get(domain, 0) + sum(map(is_counted, node.guests))
    return counts
