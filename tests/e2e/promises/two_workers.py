"""What a run on two worker pods promises, and what every run promises about security."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.e2e.promises.common import Look, ended, text, tree, whole

RUN = "two-workers"


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
    "no log, event, ConfigMap or value has a secret": _no_secret_is_said,
}
