"""Evaluates NetworkPolicies as the Kubernetes API defines them, with the table of who may talk to whom in a run.

A peer is `{namespace, labels}`, or `{ip}` for one outside the cluster.
"""

from __future__ import annotations

import ipaddress
from typing import Any

Tree = dict[str, Any]

OPERATOR = {"namespace": "kuberay-system", "labels": {"app": "operator"}}
STRANGER = {"namespace": "opd", "labels": {"app": "other"}}
FOREIGN = {"namespace": "opd", "labels": {"opd/run-id": "other-run", "app.kubernetes.io/component": "head"}}
PROMETHEUS = {"namespace": "monitoring", "labels": {"app": "prometheus"}}
INTERNET = {"ip": "93.184.216.34"}
# Source, target, port, whether it is allowed.
TABLE = [
    ("worker", "head", 6379, True),
    ("head", "worker", 10002, True),
    ("worker", "worker", 29500, True),
    ("submitter", "head", 8265, True),
    ("submitter", "head", 6379, False),
    ("submitter", "worker", 8265, False),
    ("operator", "head", 8265, True),
    ("operator", "head", 6379, False),
    ("stranger", "head", 8265, False),
    ("stranger", "head", 6379, False),
    ("stranger", "worker", 22, False),
    ("stranger", "submitter", 80, False),
    ("foreign", "head", 6379, False),
    ("foreign", "worker", 29500, False),
    ("head", "stranger", 80, False),
    ("head", "internet", 443, True),
    ("worker", "internet", 443, True),
    ("worker", "internet", 80, False),
    ("submitter", "internet", 443, False),
    ("internet", "head", 8265, False),
    ("prometheus", "head", 8080, False),
]


def both_ways(policies: list[Tree], source: Tree, target: Tree, port: int, protocol: str = "TCP") -> bool:
    """Whether the source may send it and the target may receive it."""
    return one_way(policies, "Egress", source, target, port, protocol) and one_way(
        policies, "Ingress", target, source, port, protocol
    )


def selects(selector: Tree, labels: Tree) -> bool:
    """Whether a label selector selects these labels."""
    values = {item["key"]: item["values"] for item in selector.get("matchExpressions", ())}
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(key) in allowed for key, allowed in values.items()
    )


def matches(peer_rule: Tree, peer: Tree) -> bool:
    """Whether one entry of `from` or `to` means this peer."""
    if "ipBlock" in peer_rule:
        return "ip" in peer and ipaddress.ip_address(peer["ip"]) in ipaddress.ip_network(peer_rule["ipBlock"]["cidr"])
    if "ip" in peer:
        return False
    if "namespaceSelector" in peer_rule:
        if not selects(peer_rule["namespaceSelector"], {"kubernetes.io/metadata.name": peer["namespace"]}):
            return False
    elif peer["namespace"] != "opd":
        return False
    return selects(peer_rule.get("podSelector", {}), peer["labels"])


def one_way(policies: list[Tree], direction: str, pod: Tree, peer: Tree, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let `pod` have this traffic in one direction, as the Kubernetes API defines it."""
    side, key = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[direction]
    bound = [
        policy["spec"]
        for policy in policies
        if "labels" in pod and pod["namespace"] == "opd" and selects(policy["spec"]["podSelector"], pod["labels"])
        and direction in policy["spec"]["policyTypes"]
    ]  # fmt: skip
    if not bound:
        return True
    return any(
        (key not in rule or any(matches(item, peer) for item in rule[key]))
        and ("ports" not in rule or {"protocol": protocol, "port": port} in rule["ports"])
        for spec in bound
        for rule in spec.get(side, ())
    )
