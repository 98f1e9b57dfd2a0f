"""Traffic that the rendered NetworkPolicies allow, as np-guard's netpol-analyzer says; no network enforces them.

It reads the policies, the run's pods and others; it knows IPv4 alone.
"""

import functools
import ipaddress
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.charts.helm import pod_templates

from gotools import find

Tree = dict[str, Any]
Pod = tuple[str, dict[str, str]]  # namespace and labels

# Other pods.
OTHERS: dict[str, Pod] = {
    "operator": ("kuberay-system", {"app": "operator"}),
    "stranger": ("opd", {"app": "other"}),
    "foreign": ("opd", {"opd/run-id": "other-run", "app.kubernetes.io/component": "head"}),
    "prometheus": ("monitoring", {"app": "prometheus"}),
    "dns": ("kube-system", {"k8s-app": "kube-dns"}),
    "openshift-dns": ("openshift-dns", {"dns.operator.openshift.io/daemonset-dns": "default"}),
    "minio": ("minio", {"app": "minio"}),
    "data-foundation": ("openshift-storage", {"app": "rgw"}),
}
# Addresses outside the cluster, and those that clouds and nodes answer at.
ADDRESSES = {"internet": "93.184.216.34", "metadata": "169.254.169.254"}
ADDRESSES |= {"node-dns": "169.254.20.10", "office": "10.1.2.3"}
# Source, target, port, whether it is allowed; over TCP.
TABLE = [
    ("worker", "head", 6379, True),
    ("head", "worker", 10002, True),
    ("worker", "worker-2", 29500, True),
    ("worker", "teacher", 8000, True),
    ("head", "teacher", 8000, True),
    ("teacher", "head", 6379, True),
    ("submitter", "teacher", 8000, False),
    ("stranger", "teacher", 8000, False),
    ("foreign", "teacher", 8000, False),
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
    ("worker", "metadata", 80, False),
    ("submitter", "internet", 443, False),
    ("submitter", "metadata", 80, False),
    ("internet", "head", 8265, False),
    ("prometheus", "head", 8080, False),
]


class Traffic:
    """The connections that NetworkPolicies let through between pods and `ADDRESSES`."""

    def __init__(self, policies: Sequence[Tree], pods: Mapping[str, Pod]) -> None:
        listed = json.loads(_analysis(json.dumps([*policies]), json.dumps({**pods, **OTHERS})))
        self._lines = [(_peer(line["src"]), _peer(line["dst"]), line["conn"]) for line in listed]

    def allows(self, source: str, target: str, port: int, protocol: str = "TCP") -> bool:
        """Return True if the source may send it and the target may receive it."""
        return any(
            _means(source, src) and _means(target, dst) and _carries(conn, port, protocol)
            for src, dst, conn in self._lines
        )


def of_chart(trees: Sequence[Tree]) -> Traffic:
    """Return the traffic of a run as it is rendered, with a second worker."""
    pods = {role: ("opd", pod["metadata"]["labels"]) for role, pod in pod_templates(trees) if role != "check"}
    pods |= {"worker-2": pods["worker"]} if "worker" in pods else {}
    return Traffic([tree for tree in trees if tree["kind"] == "NetworkPolicy"], pods)


@functools.cache
def _analysis(policies: str, pods: str) -> str:
    """Return every allowed connection as the analyser lists them: `[{src, dst, conn}]`."""
    peers: dict[str, Pod] = json.loads(pods)
    trees = [_without_ipv6(policy) for policy in json.loads(policies)]
    for name in {namespace for namespace, _ in peers.values()}:
        trees.append(_object("Namespace", {"name": name, "labels": {"kubernetes.io/metadata.name": name}}))
    for number, (name, (namespace, labels)) in enumerate(peers.items(), start=1):
        status = {"hostIP": "192.168.0.1", "podIPs": [{"ip": f"10.244.0.{number}"}]}
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        trees.append(_object("Pod", metadata) | {"spec": {"containers": []}, "status": status})
    with tempfile.TemporaryDirectory() as folder:
        for number, tree in enumerate(trees):
            (Path(folder) / f"{number}.yaml").write_text(json.dumps(tree))
        command = [str(find("netpol-analyzer")), "list", "--quiet", "--output", "json", "--dirpath", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _object(kind: str, metadata: Tree) -> Tree:
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def _without_ipv6(policy: Tree) -> Tree:
    """Return the policy without blocks of IPv6; a rule without other peers goes, since it would mean all."""
    for rules, key in ((policy["spec"].get("ingress", []), "from"), (policy["spec"].get("egress", []), "to")):
        for rule in [rule for rule in rules if key in rule]:
            rule[key] = [peer for peer in rule[key] if ":" not in peer.get("ipBlock", {}).get("cidr", "")]
            if not rule[key]:
                rules.remove(rule)
    return policy


def _peer(text: str) -> str:
    """Return `head` for `opd/head[Pod]`; a range of addresses stays."""
    return text.split("/")[-1].removesuffix("[Pod]") if text.endswith("[Pod]") else text


def _means(name: str, peer: str) -> bool:
    if name not in ADDRESSES or not peer[0].isdigit():
        return name == peer
    first, last = (ipaddress.ip_address(part) for part in (*peer.split("-"), peer)[:2])
    return first <= ipaddress.ip_address(ADDRESSES[name]) <= last


def _carries(conn: str, port: int, protocol: str) -> bool:
    """Return True if `TCP 80,443-445,UDP 53`, or `All Connections`, has the port."""
    of = ""
    for word in conn.replace(",", " ").split():
        of = word if word.isalpha() else of
        first, last = (word, "0") if word.isalpha() else (*word.split("-"), word)[:2]
        if of == protocol and not word.isalpha() and int(first) <= port <= int(last):
            return True
    return conn == "All Connections"
