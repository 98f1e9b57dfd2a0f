"""Who may talk to whom: the rendered policies, evaluated on the labels of the rendered pods."""

import ipaddress

import pytest
from tests.charts.helm import RUN, objects, pod_templates

OPERATOR = {"namespace": "kuberay-system", "labels": {"app": "operator"}}
STRANGER = {"namespace": "opd", "labels": {"app": "other"}}
FOREIGN = {"namespace": "opd", "labels": {"opd/run-id": "other-run", "app.kubernetes.io/component": "head"}}
PROMETHEUS = {"namespace": "monitoring", "labels": {"app": "prometheus"}}
INTERNET = {"ip": "93.184.216.34"}


def peers(trees):
    """Head, worker and submitter of the run as the policies see them, and strangers."""
    own = {role: {"namespace": "opd", "labels": pod["metadata"]["labels"]} for role, pod in pod_templates(trees)}
    return {
        **own,
        "operator": OPERATOR,
        "stranger": STRANGER,
        "foreign": FOREIGN,
        "prometheus": PROMETHEUS,
        "internet": INTERNET,
    }


def selects(selector, labels):
    values = {item["key"]: item["values"] for item in selector.get("matchExpressions", ())}
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(key) in allowed for key, allowed in values.items()
    )


def matches(peer_rule, peer):
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


def one_way(policies, direction, pod, peer, port, protocol="TCP"):
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


def allowed(trees, source, target, port, protocol="TCP"):
    everyone = peers(trees)
    policies = [tree for tree in trees if tree["kind"] == "NetworkPolicy"]
    here, there = everyone[source], everyone[target]
    return one_way(policies, "Egress", here, there, port, protocol) and one_way(
        policies, "Ingress", there, here, port, protocol
    )


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


@pytest.mark.parametrize(("source", "target", "port", "expected"), TABLE)
def test_traffic_is_allowed_exactly_where_the_run_needs_it(source, target, port, expected):
    assert allowed(objects("opd"), source, target, port) is expected


@pytest.mark.parametrize("role", ["head", "worker", "submitter"])
def test_names_can_be_resolved_anywhere(role):
    trees = objects("opd")
    assert allowed(trees, role, "stranger", 53, "UDP")
    assert allowed(trees, role, "internet", 53, "TCP")


def test_metrics_are_open_to_the_namespace_that_is_named():
    trees = objects("opd", {"cluster": {"networkPolicy": {"metricsNamespace": "monitoring"}}})
    assert allowed(trees, "prometheus", "worker", 8080)
    assert not allowed(trees, "prometheus", "worker", 6379)


def test_the_ways_out_are_values():
    egress = [{"cidr": "10.1.0.0/16", "ports": [9000]}]
    trees = objects("opd", {"cluster": {"networkPolicy": {"egress": egress}}})
    assert not allowed(trees, "worker", "internet", 443)
    policies = [tree for tree in trees if tree["kind"] == "NetworkPolicy"]
    assert one_way(policies, "Egress", peers(trees)["worker"], {"ip": "10.1.2.3"}, 9000)


def test_policies_can_be_switched_off():
    trees = objects("opd", {"cluster": {"networkPolicy": {"enabled": False}}})
    assert "NetworkPolicy" not in {tree["kind"] for tree in trees}


def test_without_a_submitter_there_is_no_policy_for_one():
    names = [tree["metadata"]["name"] for tree in objects("eval") if tree["kind"] == "NetworkPolicy"]
    assert names == [RUN]
