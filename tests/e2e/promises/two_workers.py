"""What a run on two worker pods promises, and what every run promises about security."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.charts.policies import ADDRESSES, TABLE, Pod, Traffic
from tests.e2e.cluster.isolation import NODE_IP
from tests.e2e.cluster.services import S3_PORT
from tests.e2e.promises.common import Look, ended, text, tree, whole

RUN = "two-workers"
# Beside the table of the charts: this cluster's way out is its store alone.
_HERE = [
    ("head", "store", S3_PORT, True),
    ("worker", "store", S3_PORT, True),
    ("submitter", "store", S3_PORT, False),
    ("worker", "store", 22, False),
    ("head", "internet", 443, False),
    ("worker", "internet", 443, False),
]


def _two_pods_one_rank_each(folder: Path) -> tuple[bool, str]:
    workers = {
        pod["metadata"]["name"]: pod["status"].get("podIP", "")
        for pod in tree(folder, "pods-running.json")
        if _role(pod) == "worker"
    }
    names = text(folder, f"{RUN}.s3.txt").split()
    shards = sorted({name.rpartition("/")[2] for name in names if "/actor/model_world_size_" in name})
    is_sharded = shards == [f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)]
    seen = tree(folder, "processes.json")
    ranks = {name: seen[name]["ranks"] for name in workers}
    is_spread = list(ranks.values()) == [1, 1] and len(set(workers.values())) == 2
    return is_spread and is_sharded, f"ranks {ranks}; {', '.join(shards)}"


def _namespace_is_restricted(folder: Path) -> tuple[bool, str]:
    level = tree(folder, "namespace.json")["metadata"]["labels"].get("pod-security.kubernetes.io/enforce")
    return level == "restricted", f"enforce: {level}"


def _nobody_is_root(folder: Path) -> tuple[bool, str]:
    seen = tree(folder, "processes.json")
    return len(seen) == 4 and all(
        one["uid"] != 0 for one in seen.values()
    ), f"uids {[one['uid'] for one in seen.values()]}"


def _no_api_token(folder: Path) -> tuple[bool, str]:
    seen = tree(folder, "processes.json")
    mounted = [name for name, one in seen.items() if one["token"]]
    return len(seen) == 4 and not mounted, f"{len(seen)} pods, with a token: {mounted or 'none'}"


def _dashboard_asks_for_the_token(folder: Path) -> tuple[bool, str]:
    seen = tree(folder, "dashboard.json")
    return seen["without"] in (401, 403) and seen["with"] == 200, f"without {seen['without']}, with {seen['with']}"


def _policies_hold(folder: Path) -> tuple[bool, str]:
    """The charts' table, on the labels of the pods that ran and the policies that the API server had."""
    policies = tree(folder, "policies.json")
    pods: dict[str, Pod] = {}
    for pod in tree(folder, "pods-running.json"):
        role = _role(pod)
        name = f"{role}-2" if role in pods else role
        pods[name] = (pod["metadata"]["namespace"], pod["metadata"]["labels"])
    traffic = Traffic(policies, pods, {**ADDRESSES, "store": NODE_IP})
    rows = [row for row in TABLE if row[:2] not in {one[:2] for one in _HERE}] + _HERE
    wrong = [row for row in rows if traffic.allows(*row[:3]) is not row[3]]
    return not wrong, f"{len(rows)} rows, {len(policies)} policies" + (f", wrong: {wrong}" if wrong else "")


def _no_secret_is_said(folder: Path) -> tuple[bool, str]:
    secrets, said = tree(folder, "secrets.json"), sorted((folder / "said").iterdir())
    said += sorted((folder / f"{RUN}.store").rglob("*.*"))
    found = [
        f"{name} in {path.name}"
        for path in said
        if path.is_file()
        for name, one in secrets.items()
        if _contains(path.read_bytes(), one["length"], one["sha256"])
    ]
    kinds = {name.split("/")[1] for name in secrets}
    ok = not found and kinds == {"AWS_SECRET_ACCESS_KEY", "auth_token"} and len(said) > 6
    return ok, f"{len(secrets)} values, {len(said)} texts" + (f"; {found}" if found else "")


def _contains(data: bytes, length: int, sha256: str) -> bool:
    """Whether some part of this length has this hash; a value never spans lines."""
    for line in data.split(b"\n"):
        for start in range(len(line) - length + 1):
            if hashlib.sha256(line[start : start + length]).hexdigest() == sha256:
                return True
    return False


def _role(pod: dict[str, Any]) -> str:
    return pod["metadata"]["labels"]["app.kubernetes.io/component"]


PROMISES: dict[str, Look] = {
    "a rank on each of two worker pods, one job": _two_pods_one_rank_each,
    "the RayJob SUCCEEDED": ended(RUN),
    "no step lost or doubled": whole(RUN, num_attempts=1, most_recomputed=0),
    "the namespace enforces Pod Security restricted": _namespace_is_restricted,
    "no process runs as root": _nobody_is_root,
    "no pod has a token of the API server": _no_api_token,
    "Ray's dashboard refuses a call without the token": _dashboard_asks_for_the_token,
    "the NetworkPolicies' table holds on the running pods' labels": _policies_hold,
    "no log, event, ConfigMap or value has a secret": _no_secret_is_said,
}
