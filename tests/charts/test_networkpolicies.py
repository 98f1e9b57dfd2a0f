"""Who may talk to whom: the rendered policies, evaluated on the labels of the rendered pods."""

import pytest
from tests.charts.helm import RUN, objects, pod_templates, refusal
from tests.charts.policies import FOREIGN, INTERNET, OPERATOR, PROMETHEUS, STRANGER, TABLE, both_ways, one_way


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


def allowed(trees, source, target, port, protocol="TCP"):
    everyone = peers(trees)
    policies = [tree for tree in trees if tree["kind"] == "NetworkPolicy"]
    return both_ways(policies, everyone[source], everyone[target], port, protocol)


@pytest.mark.parametrize(("source", "target", "port", "expected"), TABLE)
def test_traffic_is_allowed_exactly_where_the_run_needs_it(source, target, port, expected):
    assert allowed(objects("opd"), source, target, port) is expected


@pytest.mark.parametrize("role", ["head", "worker", "submitter"])
def test_names_are_resolved_by_the_clusters_dns_alone(role):
    trees = objects("opd")
    policies = [tree for tree in trees if tree["kind"] == "NetworkPolicy"]
    pod = peers(trees)[role]
    for resolver, port in (({"namespace": "kube-system", "labels": {}}, 53), ({"namespace": "openshift-dns", "labels": {}}, 5353),
                           ({"ip": "169.254.20.10"}, 53)):  # fmt: skip
        assert all(one_way(policies, "Egress", pod, resolver, port, protocol) for protocol in ("UDP", "TCP"))
    assert not allowed(trees, role, "stranger", 53, "UDP")
    assert not allowed(trees, role, "internet", 53, "UDP")
    assert not allowed(trees, role, "internet", 53, "TCP")


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


def test_policies_are_switched_off_only_by_who_accepts_what_that_opens():
    off = {"enabled": False}
    assert "acceptOpenNetwork" in refusal("opd", {"cluster": {"networkPolicy": off}})
    trees = objects("opd", {"cluster": {"networkPolicy": off | {"acceptOpenNetwork": True}}})
    assert "NetworkPolicy" not in {tree["kind"] for tree in trees}


def test_without_a_submitter_there_is_no_policy_for_one():
    names = [tree["metadata"]["name"] for tree in objects("eval") if tree["kind"] == "NetworkPolicy"]
    assert names == [RUN]
