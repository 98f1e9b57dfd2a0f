"""Whether NetworkPolicies let pods out, by their rules alone."""

from __future__ import annotations

from typing import Any

import pytest

from opdctl.doctor.egress import Server, is_reachable

LABELS = {"opd/run-id": "r"}
OUTSIDE = Server(host="s3.example.com", port=443)
ADDRESS = Server(host="10.1.2.3", port=9000)
SERVICE = Server(host="minio.minio.svc", port=9000, namespace="minio", labels={"app": "minio", "tier": "x"})


def policy(
    *rules: dict[str, Any], selector: dict | None = None, types: tuple[str, ...] = ("Egress",)
) -> dict[str, Any]:
    return {"spec": {"podSelector": selector or {}, "policyTypes": list(types), "egress": list(rules)}}


def rule(*peers: dict[str, Any], ports: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"to": list(peers), "ports": [{"protocol": "TCP", "port": port} for port in ports]}


def block(cidr: str, *out: str) -> dict[str, Any]:
    return {"ipBlock": {"cidr": cidr, "except": list(out)}}


def pods(namespace: str | None, **labels: str) -> dict[str, Any]:
    of = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}} if namespace else {}
    return {**of, "podSelector": {"matchLabels": labels} if labels else {}}


@pytest.mark.parametrize(
    ("policies", "server", "answer"),
    [
        ([], OUTSIDE, True),
        ([policy()], OUTSIDE, False),
        ([policy(types=("Ingress",))], OUTSIDE, True),
        ([policy(selector={"matchLabels": {"other": "x"}})], OUTSIDE, True),
        ([policy(), policy(rule(block("0.0.0.0/0"), ports=(443,)))], OUTSIDE, True),
        ([policy(rule(block("0.0.0.0/0"), ports=(80,)))], OUTSIDE, False),
        ([policy(rule(block("0.0.0.0/0", "169.254.0.0/16"), ports=(443,)))], OUTSIDE, True),
        ([policy(rule(block("0.0.0.0/0", "10.0.0.0/8"), ports=(443,)))], OUTSIDE, None),
        ([policy(rule(block("10.0.0.0/8"), ports=(443,)))], OUTSIDE, None),
        ([policy(rule(ports=(443,)))], OUTSIDE, True),
        ([policy(rule(block("10.0.0.0/8"), ports=(9000,)))], ADDRESS, True),
        ([policy(rule(block("10.0.0.0/8", "10.1.0.0/16"), ports=(9000,)))], ADDRESS, False),
        ([policy(rule(pods("minio")))], SERVICE, True),
        ([policy(rule(pods("minio"), ports=(80,)))], SERVICE, False),
        ([policy(rule(pods("storage")))], SERVICE, False),
        ([policy(rule(pods(None)))], SERVICE, False),
        ([policy(rule(pods("minio", app="minio")))], SERVICE, True),
        ([policy(rule(pods("minio", app="other")))], SERVICE, None),
        ([policy(rule(block("0.0.0.0/0"), ports=(9000,)))], SERVICE, None),
    ],
)
def test_policies_let_out_what_a_rule_of_one_of_them_allows(
    policies: list, server: Server, answer: bool | None
) -> None:
    assert is_reachable(server, LABELS, policies, "opd") is answer
