"""Who may talk to whom in a run, and who from outside it: the rendered policies, judged by a policy analyser."""

import pytest
import yaml
from tests.charts.helm import RUN, SITES, objects, refusal
from tests.charts.policies import TABLE, of_chart

pytestmark = pytest.mark.cluster

# Where a site file puts the store: a pod of the cluster, or outside.
STORES = {
    "aks": ("minio", 9000),
    "eks": ("internet", 443),
    "gke": ("minio", 9000),
    "k3s": ("minio", 9000),
    "openshift": ("data-foundation", 8080),
}


def traffic(*layers, kind="opd"):
    return of_chart(objects(kind, *layers))


@pytest.mark.parametrize(("source", "target", "port", "expected"), TABLE)
def test_traffic_is_allowed_exactly_where_the_run_needs_it(source, target, port, expected):
    assert traffic().allows(source, target, port) is expected


@pytest.mark.parametrize("site", SITES)
def test_every_site_file_opens_its_store_and_nothing_else(site):
    seen = traffic(yaml.safe_load(SITES[site].read_text()))
    assert [row for row in TABLE if seen.allows(*row[:3]) is not row[3]] == []
    for role in ("head", "worker", "submitter"):
        reached = {name for name, port in STORES.values() if seen.allows(role, name, port)}
        assert reached == (set() if role == "submitter" else {STORES[site][0], "internet"})


@pytest.mark.parametrize("role", ["head", "worker", "submitter"])
def test_names_are_resolved_by_the_clusters_dns_alone(role):
    seen = traffic()
    for resolver, port in (("dns", 53), ("openshift-dns", 5353), ("node-dns", 53)):
        assert all(seen.allows(role, resolver, port, protocol) for protocol in ("UDP", "TCP"))
    for other in ("stranger", "internet", "metadata"):
        assert not any(seen.allows(role, other, 53, protocol) for protocol in ("UDP", "TCP"))


def test_the_metadata_server_is_open_to_ray_pods_of_a_workload_identity_that_asks_it():
    seen = traffic({"cluster": {"serviceAccount": {"identity": "gke"}}})
    assert seen.allows("worker", "metadata", 80)
    assert not seen.allows("submitter", "metadata", 80)
    assert not seen.allows("worker", "metadata", 22)


@pytest.mark.parametrize(
    "values",
    [
        {"store": {"url": "s3://runs/opd", "endpoint": "http://minio.example"}},
        {"cluster": {"networkPolicy": {"egress": [{"ports": [80]}]}}},
        {"cluster": {"networkPolicy": {"egress": [{"cidr": "0.0.0.0/0", "ports": [80]}]}}},
    ],
    ids=["store over http", "port 80", "every address"],
)
def test_a_way_out_to_any_address_does_not_lead_to_the_node_s_credentials(values):
    seen = traffic(values)
    assert seen.allows("worker", "internet", 80)
    assert not seen.allows("worker", "metadata", 80)


def test_metrics_are_open_to_the_namespace_that_is_named():
    seen = traffic({"cluster": {"networkPolicy": {"metricsNamespace": "monitoring"}}})
    assert seen.allows("prometheus", "worker", 8080)
    assert not seen.allows("prometheus", "worker", 6379)
    assert not seen.allows("stranger", "worker", 8080)


def test_the_ways_out_are_values():
    egress = [{"cidr": "10.1.0.0/16", "ports": [9000]}]
    seen = traffic({"cluster": {"networkPolicy": {"egress": egress}}})
    assert not seen.allows("worker", "internet", 443)
    assert seen.allows("worker", "office", 9000)
    assert not seen.allows("worker", "office", 9001)


def test_policies_are_switched_off_only_by_who_accepts_what_that_opens():
    off = {"enabled": False}
    assert "acceptOpenNetwork" in refusal("opd", {"cluster": {"networkPolicy": off}})
    trees = objects("opd", {"cluster": {"networkPolicy": off | {"acceptOpenNetwork": True}}})
    assert "NetworkPolicy" not in {tree["kind"] for tree in trees}
    assert of_chart(trees).allows("stranger", "head", 6379), "the analyser sees what that opens"


def test_without_a_submitter_there_is_no_policy_for_one():
    names = [tree["metadata"]["name"] for tree in objects("eval") if tree["kind"] == "NetworkPolicy"]
    assert names == [RUN]
