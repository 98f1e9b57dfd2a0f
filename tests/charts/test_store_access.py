"""The environment of an experiment and the server of its store: in every container, and through the network policy."""

from __future__ import annotations

from typing import Any

import pytest
from tests.charts.helm import objects, refusal

STORE = {"url": "s3://runs/opd", "endpoint": "https://minio.example:9000", "region": "eu-1", "addressing": "virtual"}
EXPECTED = {
    "NCCL_DEBUG": "INFO",
    "AWS_ENDPOINT_URL_S3": "https://minio.example:9000",
    "AWS_DEFAULT_REGION": "eu-1",
    "OPD_S3_ADDRESSING": "virtual",
}
ANYWHERE = [
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::/32"]}},
]


def containers(tree: Any) -> list[dict[str, Any]]:
    """Every container of an object, init containers included."""
    if isinstance(tree, list):
        return [found for item in tree for found in containers(item)]
    if not isinstance(tree, dict):
        return []
    own = [item for key in ("containers", "initContainers") for item in tree.get(key) or []]
    return own + [found for value in tree.values() for found in containers(value)]


@pytest.mark.parametrize("mode", ["K8sJobMode", "HTTPMode"])
def test_env_and_the_store_s_server_are_in_every_container(mode: str) -> None:
    values = {
        "env": {"NCCL_DEBUG": "INFO"},
        "store": STORE,
        "agent": {"database_dir": "/databases/travel"},
        "cluster": {"submissionMode": mode, "toolDatabase": {"url": "s3://data/t.tar", "sha256": "0" * 64}},
    }
    found = containers(objects("opd-agent", values, experiment="opd-agent-quickstart"))
    names = [item["name"] for item in found]
    other = "submitter" if mode == "K8sJobMode" else "log"
    assert {"ray-head", "ray-worker", "fetch-tool-database", other} <= set(names)
    for item in found:
        env = {entry["name"]: entry.get("value") for entry in item["env"]}
        assert {name: env.get(name) for name in EXPECTED} == EXPECTED, item["name"]


def test_env_outranks_the_chart_s_own_variable() -> None:
    [head] = [item for item in containers(objects("opd", {"env": {"HF_HOME": "/a"}})) if item["name"] == "ray-head"]
    assert [entry["value"] for entry in head["env"] if entry["name"] == "HF_HOME"] == ["/a"]


@pytest.mark.parametrize(
    ("own", "name"),
    [({"env": {"X": "1"}}, "X"), ({"store": STORE}, "AWS_ENDPOINT_URL_S3"), ({"store": STORE}, "OPD_S3_ADDRESSING")],
)
def test_a_variable_that_experiment_and_pods_both_set_is_refused(own: dict[str, Any], name: str) -> None:
    said = refusal("opd", own, {"cluster": {"extraEnv": [{"name": name, "value": "2"}]}})
    assert "cluster.extraEnv.0" in said
    assert "keep one of the two" in said


@pytest.mark.parametrize(
    ("endpoint", "to", "ports"),
    [
        ("https://minio.example", ANYWHERE, [443]),
        ("http://minio.example:9000", ANYWHERE, [9000]),
        ("http://10.1.2.3:9000", [{"ipBlock": {"cidr": "10.1.2.3/32"}}], [9000]),
        ("http://[fd00::1]:9000", [{"ipBlock": {"cidr": "fd00::1/128"}}], [9000]),
        (
            "http://minio.storage.svc.cluster.local:80",
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}, "podSelector": {}}],
            None,
        ),
        ("http://minio:9000", [{"podSelector": {}}], None),
    ],
)
def test_egress_to_the_store_follows_its_endpoint(endpoint: str, to: list, ports: list[int] | None) -> None:
    rules = egress({"store": {"url": "s3://runs/opd", "endpoint": endpoint}})
    [rule] = [rule for rule in rules if rule.get("to") == to]
    assert [port["port"] for port in rule["ports"]] == ports if ports else "ports" not in rule


def test_an_endpoint_opens_nothing_for_a_store_that_is_a_folder() -> None:
    assert egress({"store": {"url": "build/store", "endpoint": "http://10.1.2.3:9000"}}) == egress(
        {"store": {"url": "build/store"}}
    )


def test_egress_may_name_pods_of_a_namespace() -> None:
    way = {"namespace": "storage", "podLabels": {"app": "minio"}, "ports": [9000]}
    rules = egress({"cluster": {"networkPolicy": {"egress": [way, {"ports": [8443]}]}}})
    assert rules[-2:] == [
        {
            "to": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}},
                    "podSelector": {"matchLabels": {"app": "minio"}},
                }
            ],
            "ports": [{"protocol": "TCP", "port": 9000}],
        },
        {"to": ANYWHERE[:1], "ports": [{"protocol": "TCP", "port": 8443}]},
    ]


def egress(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The ways out of the Ray pods."""
    policies = [item for item in objects("opd", values) if item["kind"] == "NetworkPolicy"]
    [policy] = [item for item in policies if not item["metadata"]["name"].endswith("-submitter")]
    return policy["spec"]["egress"]
