"""Whether NetworkPolicies let a run's pods out to a server, as their rules say; whether they are enforced is the network's matter."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opd.config.cluster.lifecycle import OWN_LINKS
from opdctl.doctor.selectors import Tree, selects

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# What clouds and nodes keep for themselves; no name of a server leads there.
OWN_LINK = {*OWN_LINKS.values(), "fe80::/10"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """What pods want to reach: a host outside, or a Service of the cluster, whose pods a policy looks at.

    Attributes:
        port: of the pods for a Service, where a policy takes effect; 0 where that is a name.
        namespace: of a Service, else empty.
        labels: of the Service's pods.
    """

    host: str
    port: int
    namespace: str = ""
    labels: Mapping[str, str] | None = None


def is_reachable(server: Server, labels: Mapping[str, str], policies: Sequence[Tree], namespace: str) -> bool | None:
    """Whether pods with these labels may send there; None where the rules alone do not tell."""
    mine = [policy["spec"] for policy in policies if _is_egress(policy["spec"], labels)]
    if not mine:
        return True
    found = [
        _allows(peer, server, namespace)
        for spec in mine
        for rule in spec.get("egress") or ()
        if _has_port(rule, server.port)
        for peer in rule.get("to") or [{}]
    ]
    return True if True in found else None if None in found else False


def _is_egress(spec: Tree, labels: Mapping[str, str]) -> bool:
    return "Egress" in (spec.get("policyTypes") or ()) and selects(spec.get("podSelector") or {}, labels)


def _has_port(rule: Tree, port: int) -> bool:
    ports = rule.get("ports") or ()
    return not ports or any(
        item.get("protocol", "TCP") == "TCP"
        and (
            "port" not in item
            or (isinstance(item["port"], int) and item["port"] <= port <= item.get("endPort", item["port"]))
        )
        for item in ports
    )


def _allows(peer: Tree, server: Server, namespace: str) -> bool | None:
    if not peer:
        return True
    if "ipBlock" in peer:
        return None if server.namespace else _is_in(peer["ipBlock"], server.host)
    if not server.namespace:
        return False
    if "namespaceSelector" in peer:
        is_there = selects(peer["namespaceSelector"], {NAMESPACE_LABEL: server.namespace})
        if not is_there:
            return _is_decided(peer["namespaceSelector"])
    elif server.namespace != namespace:
        return False
    if not peer.get("podSelector"):
        return True
    return selects(peer["podSelector"], server.labels) or None if server.labels else None


def _is_decided(selector: Tree) -> bool | None:
    """False where a selector that does not match speaks of the namespace's name alone; other labels are not known."""
    keys = {*(selector.get("matchLabels") or {}), *(item["key"] for item in selector.get("matchExpressions") or ())}
    return False if keys <= {NAMESPACE_LABEL} else None


def _is_in(block: Tree, host: str) -> bool | None:
    """Whether an address is in the block; of a host name only what holds for any address."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True if block["cidr"] in OWN_LINKS and OWN_LINK.issuperset(block.get("except") or ()) else None
    return address in ipaddress.ip_network(block["cidr"], strict=False) and not any(
        address in ipaddress.ip_network(out, strict=False) for out in block.get("except") or ()
    )
