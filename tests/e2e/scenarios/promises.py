"""What each scenario promises, judged from its raw evidence alone: the runner and `make e2e-verify` share this judgement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEP = re.compile(r"^\S* step +(\d+)/(\d+)  loss ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One promise and what was seen of it."""

    promise: str
    observed: str
    ok: bool

    def row(self, scenario: str, seconds: float) -> dict[str, Any]:
        """A row of summary.json."""
        return {"scenario": scenario, "seconds": seconds, **asdict(self)}


def judge(scenario: str, folder: Path) -> list[Promise]:
    """The promises of a scenario on the evidence in a folder; evidence that is missing breaks its promise."""
    found = []
    for promise, look in PROMISES[scenario].items():
        try:
            ok, observed = look(folder)
        except (FileNotFoundError, json.JSONDecodeError, KeyError, ValueError) as error:
            ok, observed = False, f"the evidence cannot be read: {type(error).__name__}: {error}"
        found.append(Promise(promise=promise, observed=observed, ok=ok))
    return found


Look = Callable[[Path], tuple[bool, str]]


def _tree(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _one_line_a_step(folder: Path) -> tuple[bool, str]:
    steps = [(int(step), int(last)) for step, last in STEP.findall((folder / "kubectl-logs.txt").read_text())]
    wanted = [(step, 6) for step in range(1, 7)]
    return steps == wanted, f"steps {[step for step, _ in steps]}"


def _succeeded(folder: Path) -> tuple[bool, str]:
    status = _tree(folder, "rayjob.json")["status"]
    seen = f"{status['jobDeploymentStatus']}, {status['jobStatus']}"
    return seen == "Complete, SUCCEEDED", seen


def _three_roles(folder: Path) -> tuple[bool, str]:
    roles = sorted(
        pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in _tree(folder, "pods-running.json")
    )
    return roles == ["head", "submitter", "worker"], ", ".join(roles)


def _store_is_whole(folder: Path) -> tuple[bool, str]:
    names = (folder / "s3.txt").read_text().split()
    wanted = [
        "run.json",
        "result.json",
        "attempts/0001/metrics.jsonl",
        "attempts/0001/driver.log",
        "global_step_6/COMPLETE",
    ]
    missing = [name for name in wanted if not any(seen.endswith(name) for seen in names)]
    return not missing, f"{len(names)} objects" + (f", without {', '.join(missing)}" if missing else "")


def _collect_prints(folder: Path) -> tuple[bool, str]:
    text = (folder / "collect.txt").read_text()
    row = next((line for line in text.splitlines() if "quickstart" in line), "")
    return "succeeded" in row and "6/6" in row, " ".join(row.split())


def _gone_after_ttl(folder: Path) -> tuple[bool, str]:
    after = _tree(folder, "after-ttl.json")
    gone = {kind: len(after[kind]) for kind in ("rayjobs", "rayclusters", "pods")}
    kept = {kind: len(after[kind]) for kind in ("configmaps", "claims")}
    is_deployed = after["release"] == "deployed"
    return not any(gone.values()) and all(
        kept.values()
    ) and is_deployed, f"left {gone}, kept {kept}, release {after['release']}"


def _kept_after_uninstall(folder: Path) -> tuple[bool, str]:
    after = _tree(folder, "after-uninstall.json")
    names = (folder / "s3-after.txt").read_text().split()
    before = (folder / "s3.txt").read_text().split()
    is_bound = [claim["status"]["phase"] for claim in after["claims"]] == ["Bound"]
    observed = f"claim bound: {is_bound}, {len(names)} of {len(before)} objects, ConfigMaps: {len(after['configmaps'])}"
    return is_bound and set(before) <= set(names) and not after["configmaps"], observed


def _model_in_store(folder: Path) -> tuple[bool, str]:
    status = _tree(folder, "convert-rayjob.json")["status"]
    names = [name.rpartition("/")[2] for name in (folder / "s3-model.txt").read_text().split()]
    is_whole = {"config.json", "model.safetensors", "tokenizer.json", "conversion.json"} <= set(names)
    return is_whole and status["jobStatus"] == "SUCCEEDED", f"{status['jobStatus']}: {', '.join(names)}"


PROMISES: dict[str, dict[str, Look]] = {
    "quickstart": {
        "head, worker and submitter pods run": _three_roles,
        "kubectl logs -f shows one line a step": _one_line_a_step,
        "the RayJob SUCCEEDED": _succeeded,
        "result, metrics, log and a complete checkpoint are in S3": _store_is_whole,
        "opdctl collect prints the run": _collect_prints,
        "after the TTL RayJob, RayCluster and pods are gone; release, ConfigMap and claim remain": _gone_after_ttl,
        "helm uninstall keeps the checkpoint claim and the store": _kept_after_uninstall,
        "the kind convert leaves the trained model in S3": _model_in_store,
    },
}
