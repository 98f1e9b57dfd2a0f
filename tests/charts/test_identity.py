"""Who the pods are: a ServiceAccount of the run's own or an existing one, and the way to a cloud's credentials."""

from __future__ import annotations

from typing import Any

import pytest
from tests.charts.helm import objects, pod_templates
from tests.charts.policies import Traffic

# Kind of identity -> (the annotation that says it, addresses and ports that it opens).
CREDENTIALS = {
    "gke": ("iam.gke.io/gcp-service-account", {("169.254.169.254", 80), ("169.254.169.252", 988)}),
    "eks-pod-identity": ("", {("169.254.170.23", 80), ("fd00:ec2::23", 80)}),
    "azure": ("azure.workload.identity/client-id", set()),
}
EVERY_ADDRESS = {address for _, addresses in CREDENTIALS.values() for address in addresses}


def opened(trees: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """Which of the clouds' addresses the workers may ask."""
    policies = [tree for tree in trees if tree["kind"] == "NetworkPolicy"]
    labels = dict(pod_templates(trees))["worker"]["metadata"]["labels"]
    traffic = Traffic(policies, {"worker": ("opd", labels)}, {ip: ip for ip, _ in EVERY_ADDRESS if ":" not in ip})
    named = {
        (peer["ipBlock"]["cidr"], port["port"])
        for policy in policies
        for rule in policy["spec"].get("egress", [])
        for peer in rule["to"]
        for port in rule.get("ports", [])
        if "ipBlock" in peer
    }  # the analyser knows no IPv6
    return {
        (ip, port)
        for ip, port in EVERY_ADDRESS
        if ((f"{ip}/128", port) in named if ":" in ip else traffic.allows("worker", ip, port))
    }


def account(**values: Any) -> list[dict[str, Any]]:
    return objects("opd", {"cluster": {"serviceAccount": values}})


def test_the_pods_run_as_an_existing_account_and_none_is_made() -> None:
    trees = account(name="trainer")
    assert "ServiceAccount" not in {tree["kind"] for tree in trees}
    for _, pod in pod_templates(trees):
        assert (pod["spec"]["serviceAccountName"], pod["spec"]["automountServiceAccountToken"]) == ("trainer", False)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", CREDENTIALS)
def test_the_address_of_workload_identity_is_open_where_an_identity_is_named(kind: str) -> None:
    annotation, addresses = CREDENTIALS[kind]
    assert opened(account(name="trainer", identity=kind)) == addresses
    if annotation:
        assert opened(account(annotations={annotation: "x"})) == addresses


@pytest.mark.cluster
def test_no_identity_opens_none_of_them_and_irsa_needs_none() -> None:
    assert opened(account()) == set()
    assert opened(account(annotations={"eks.amazonaws.com/role-arn": "arn"})) == set()


def test_azure_s_webhook_finds_the_ray_pods_by_their_label() -> None:
    label = {"azure.workload.identity/use": "true"}
    for role, pod in pod_templates(account(identity="azure")):
        assert (label.items() <= pod["metadata"]["labels"].items()) == (role in ("head", "worker"))
