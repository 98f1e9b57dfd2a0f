"""What Kubernetes' own selectors, tolerations and requests mean, as pure functions over its objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from opd.config.quantity import number

Tree = Mapping[str, Any]
Amounts = dict[str, Decimal]


def selects(selector: Tree | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) selects these labels; an empty one selects everything, none
    nothing."""
    if selector is None:
        return False
    own = (selector.get("matchLabels") or {}).items() <= labels.items()
    return own and all(matches(item, labels) for item in selector.get("matchExpressions") or ())


def matches(expression: Tree, labels: Mapping[str, str]) -> bool:
    """Whether labels meet one expression of a selector or of a node affinity."""
    value, wanted = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.lstrip("-").isdecimal():
                return False
            return int(value) > int(wanted[0]) if operator == "Gt" else int(value) < int(wanted[0])
    return False


def tolerates(tolerations: Iterable[Tree], taint: Tree) -> bool:
    """Whether one of the tolerations is for this taint."""
    return any(_tolerates(item, taint) for item in tolerations)


def _tolerates(toleration: Tree, taint: Tree) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")


def requests(spec: Tree) -> Amounts:
    """What the scheduler sets aside for a pod: its containers and side cars together, or an init container that needs more.

    A limit without a request is a request too.
    """
    total: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _asked(container)
        if container.get("restartPolicy") == "Always":
            total = add(total, own)
        peak = most(peak, total if container.get("restartPolicy") == "Always" else add(total, own))
    for container in spec.get("containers") or ():
        total = add(total, _asked(container))
    return add(most(total, peak), amounts(spec.get("overhead")))


def limits(spec: Tree) -> Amounts:
    """The limits of a pod's containers together."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        total = add(total, amounts((container.get("resources") or {}).get("limits")))
    return total


def amounts(resources: Mapping[str, int | str] | None) -> Amounts:
    """Quantities as numbers."""
    return {name: number(value) for name, value in (resources or {}).items()}


def add(one: Amounts, other: Amounts, *, times: int = 1) -> Amounts:
    """The sum, the second one `times` over."""
    return {name: one.get(name, Decimal()) + times * other.get(name, Decimal()) for name in {**one, **other}}


def most(one: Amounts, other: Amounts) -> Amounts:
    """The larger of each."""
    return {name: max(one.get(name, Decimal()), other.get(name, Decimal())) for name in {**one, **other}}


def in_words(name: str, amount: Decimal) -> str:
    """An amount as people write it: `96`, `7.9` (cpu), `213Gi`."""
    if name.rpartition(".")[2] in ("memory", "ephemeral-storage", "storage") or name.startswith("hugepages-"):
        gib = amount / 2**30
        return f"{gib:.0f}Gi" if gib >= 10 or gib == int(gib) else f"{gib:.1f}Gi"
    return f"{amount.normalize():f}"


def _asked(container: Tree) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
