"""Who may talk to whom in a run, and who from outside it: the rendered policies, judged by a policy analyser."""

import pytest
import yaml
from tests.charts.helm import RUN, SERVE, SITES, objects, one, refusal
from tests.charts.policies import TABLE, of_chart

CLUSTER = pytest.mark.cluster
ANYWHERE = [
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::/32"]}},
]

# Where a site file puts the store: a pod of the cluster, or outside.
STORES = dict.fromkeys(("aks", "gke", "k3s"), ("minio", 9000))
STORES |= {"eks": ("internet", 443), "openshift": ("data-foundation", 8080)}


def traffic(*layers, kind="opd"):
    return of_chart(objects(kind, SERVE, *layers))


@CLUSTER
@pytest.mark.parametrize(("source", "target", "port", "expected"), TABLE)
def test_traffic_is_allowed_exactly_where_the_run_needs_it(source, target, port, expected):
    assert traffic().allows(source, target, port) is expected


@CLUSTER
@pytest.mark.parametrize("site", SITES)
def test_every_site_file_opens_its_store_and_nothing_else(site):
    seen = traffic(yaml.safe_load(SITES[site].read_text()))
    assert [row for row in TABLE if seen.allows(*row[:3]) is not row[3]] == []
    for role in ("head", "worker", "submitter"):
        reached = {name for name, port in STORES.values() if seen.allows(role, name, port)}
        assert reached == (set() if role == "submitter" else {STORES[site][0], "internet"})


@CLUSTER
@pytest.mark.parametrize("role", ["head", "worker", "submitter"])
def test_names_are_resolved_by_the_clusters_dns_alone(role):
    seen = traffic()
    for resolver, port in (("dns", 53), ("openshift-dns", 5353), ("node-dns", 53)):
        assert all(seen.allows(role, resolver, port, protocol) for protocol in ("UDP", "TCP"))
    for other in ("stranger", "internet", "metadata"):
        assert not any(seen.allows(role, other, 53, protocol) for protocol in ("UDP", "TCP"))


def named(*layers):
    """Every address and port of the ways out of Ray pods."""
    policy = one(objects("opd", *layers), "NetworkPolicy", RUN)["spec"]
    return {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer for port in rule.get("ports", [])
    }  # fmt: skip


NAMING = {
    "store": lambda url: {"store": {"url": "s3://runs/opd", "endpoint": url}},
    "teacher": lambda url: {"teacher": {"path": "t", "url": f"{url}/v1"}},
    "teachers": lambda url: {
        "teacher": None,
        "teachers": {"a": {"path": "t"}, "b": {"path": "u", "url": [f"{url}/v1"]}},
        "route": {"to": {"x": "b"}},
    },
    "agent": lambda url: {"agent": {"toolset": f"mcp:{url}/mcp"}, "reward": {"function": "exact_match"}},
}


@pytest.mark.parametrize(
    ("url", "to", "ports"),
    [
        ("https://minio.example", ANYWHERE, [443]),
        ("http://minio.example:9000", ANYWHERE, [9000]),
        ("http://10.1.2.3:9000", [{"ipBlock": {"cidr": "10.1.2.3/32"}}], [9000]),
        ("http://[fd00::1]:9000", [{"ipBlock": {"cidr": "fd00::1/128"}}], [9000]),
        ("http://minio.storage.svc.cluster.local:80", [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}, "podSelector": {}}], None),
        ("http://minio:9000", [{"podSelector": {}}], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", [*NAMING, "HF_ENDPOINT", "MLFLOW_TRACKING_URI", "HTTPS_PROXY", "http_proxy"])
def test_egress_follows_the_servers_that_the_experiment_names(key, url, to, ports):
    values = NAMING[key](url) if key in NAMING else {"env": {key: url}}
    for name in (RUN, f"{RUN}-check"):
        rules = one(objects("opd-agent" if key == "agent" else "opd", values), "NetworkPolicy", name)["spec"]["egress"]
        found = [rule for rule in rules if rule.get("to") == to]
        assert [[port["port"] for port in rule["ports"]] if "ports" in rule else None for rule in found][:1] == [ports]


def test_an_endpoint_opens_nothing_for_a_store_that_is_a_folder_and_a_dns_server_is_a_value():
    assert ("10.1.2.3/32", 9000) not in named({"store": {"url": "build/store", "endpoint": "http://10.1.2.3:9000"}})
    resolver = ("169.254.169.254/32", 53)  # of Cloud DNS (row a9): a value
    assert resolver in named({"cluster": {"networkPolicy": {"dnsCidrs": [resolver[0]]}}})


def ways(**policy):
    return {"cluster": {"networkPolicy": policy}}


OVER_HTTP = {"store": {"url": "s3://runs/opd", "endpoint": "http://minio.example"}}
OFFICE = ways(egress=[{"cidr": "10.1.0.0/16", "ports": [9000]}])
METADATA = ways(egress=[{"cidr": "169.254.169.254/32", "ports": [80, 8080]}])
MINIO = ways(egress=[{"namespace": "minio", "podLabels": {"app": "minio"}, "ports": [9000]}])
WAYS = [
    (ways(metricsNamespace="monitoring"), "prometheus", "worker", {8080}),
    (ways(metricsNamespace="monitoring"), "stranger", "worker", set()),
    (OFFICE, "worker", "office", {9000}),
    (OFFICE, "worker", "internet", set()),
    (MINIO, "worker", "minio", {9000}),
    (MINIO, "worker", "data-foundation", set()),
    (METADATA, "worker", "metadata", {80, 8080}),
    (METADATA, "submitter", "metadata", set()),
    (OVER_HTTP, "worker", "internet", {80, 443}),
    # No way out to any address leads to the node's credentials.
    (OVER_HTTP, "worker", "metadata", set()),
    (ways(egress=[{"ports": [80]}]), "worker", "metadata", set()),
    (ways(egress=[{"cidr": "0.0.0.0/0", "ports": [80]}]), "worker", "metadata", set()),
]


@CLUSTER
@pytest.mark.parametrize(("values", "source", "target", "ports"), WAYS, ids=str)
def test_values_open_the_ways_that_they_name_and_no_other(values, source, target, ports):
    seen = traffic(values)
    assert {port for port in (22, 80, 443, 6379, 8080, 9000, 9001) if seen.allows(source, target, port)} == ports


@CLUSTER
def test_policies_are_switched_off_only_by_who_accepts_what_that_opens():
    off = {"enabled": False}
    assert "acceptOpenNetwork" in refusal("opd", {"cluster": {"networkPolicy": off}})
    trees = objects("opd", {"cluster": {"networkPolicy": off | {"acceptOpenNetwork": True}}})
    assert "NetworkPolicy" not in {tree["kind"] for tree in trees}
    assert of_chart(trees).allows("stranger", "head", 6379), "the analyser sees what that opens"
