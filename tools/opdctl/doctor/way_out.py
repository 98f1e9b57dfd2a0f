"""Reads for doctor what lies between a run's pods and its store: the store's Service, and the namespace's NetworkPolicies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from opd.store.access import S3_PROTOCOLS, StoreAddress, said_of
from opdctl.doctor.egress import Server, is_reachable
from opdctl.doctor.looking import SEES, seen
from opdctl.doctor.report import Check, bad, good, service_of, unseen, warning
from opdctl.doctor.selectors import Tree
from opdctl.kube.client import ROLE_LABEL, KubeApi
from opdctl.kube.errors import HTTP_FORBIDDEN, ClusterError
from opdctl.kube.notice import COMPONENT


def look_at_way_out(
    api: KubeApi, store: StoreAddress | None, objects: Sequence[Tree], labels: Mapping[str, str]
) -> list[Check]:
    """Whether pods with these labels may reach the store's server under the run's policies and the namespace's."""
    own = [tree for tree in objects if tree["kind"] == "NetworkPolicy"]
    policies = [
        *own,
        *seen(lambda: api.list("/apis/networking.k8s.io/v1/" + f"namespaces/{api.namespace}/networkpolicies"), []),
    ]
    # The head's way to the API server is none of the workers'.
    policies = [policy for policy in policies if policy["metadata"].get("labels", {}).get(ROLE_LABEL) != COMPONENT]
    server, checks = _server(api, store)
    if server is None:
        return checks
    said = f"to the store, {server.host}" + (f" (pods' port {server.port})" if server.namespace else f":{server.port}")
    answer = is_reachable(server, labels, policies, api.namespace)
    if answer is None:
        fix = "compare cluster.networkPolicy.egress with its addresses"
        return [*checks, unseen("egress", f"whether the NetworkPolicies' addresses let the pods out {said}", fix)]
    if answer:
        return [*checks, good("egress", f"the NetworkPolicies let the pods out {said}")]
    way = (
        f"{{namespace: {server.namespace}, ports: [{server.port}]}}"
        if server.namespace
        else f"{{cidr: 0.0.0.0/0, ports: [{server.port}]}}"
    )
    return [
        *checks,
        bad("egress", f"no NetworkPolicy lets the pods out {said}", f"add {way} to cluster.networkPolicy.egress"),
    ]


def _server(api: KubeApi, store: StoreAddress | None) -> tuple[Server | None, list[Check]]:
    """The store's server as the pods' policies see it, and what is wrong with it itself."""
    if store is None or not is_s3(store):
        return None, []
    endpoint = said_of("endpoint", store.variables)
    if not endpoint:
        region = said_of("region", store.variables)
        return Server(host=f"s3.{region + '.' if region else ''}amazonaws.com", port=443), []
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    service = service_of(endpoint)
    if service is None:
        name, dot, namespace = host.partition(".")
        if "." not in namespace and dot and seen(lambda: api.find(f"/api/v1/namespaces/{namespace}/services/{name}")):
            text = f"{host} is a Service, and the run's policy lets its pods out to addresses, which not every network matches to pods"
            return None, [warning("egress", text, f"write it as {host}.svc in store.endpoint")]
        return Server(host=host, port=port), []
    name, namespace = service[0], service[1] or api.namespace
    try:
        tree = api.find(f"/api/v1/namespaces/{namespace}/services/{name}")
    except ClusterError as error:
        if error.status != HTTP_FORBIDDEN:
            raise
        return None, [unseen("egress", f"the store's Service {host}: you may not look at it", SEES)]
    if tree is None:
        text = f"there is no Service {name} in namespace {namespace}: {host} is no server"
        return None, [bad("egress", text, "correct store.endpoint, or have the store installed there")]
    ports = {item["port"]: item.get("targetPort", item["port"]) for item in tree["spec"].get("ports") or ()}
    if port not in ports:
        text = f"Service {host} has no port {port}: it has {', '.join(map(str, ports))}"
        return None, [bad("egress", text, "correct the port of store.endpoint")]
    pods = ports[port] if isinstance(ports[port], int) else 0
    return Server(host=host, port=pods, namespace=namespace, labels=tree["spec"].get("selector")), []


def is_s3(at: StoreAddress | None) -> bool:
    """Whether a store is reached by S3's protocol."""
    return at is not None and urlsplit(at.url).scheme in S3_PROTOCOLS
