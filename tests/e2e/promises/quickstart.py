"""What the first scenario promises: from `helm install` to an uninstalled release, with the model left in S3."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.promises.common import MODEL_FILES, NUM_STEPS, STEP, Look, ended, rayjob, text, tree

RUN = "opd-run"


def _one_line_a_step(folder: Path) -> tuple[bool, str]:
    steps = [(int(step), int(last)) for step, last in STEP.findall(text(folder, "kubectl-logs.txt"))]
    wanted = [(step, NUM_STEPS) for step in range(1, NUM_STEPS + 1)]
    return steps == wanted, f"steps {[step for step, _ in steps]}"


def _three_roles(folder: Path) -> tuple[bool, str]:
    roles = sorted(
        pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in tree(folder, "pods-running.json")
    )
    phases = {pod["status"]["phase"] for pod in tree(folder, "pods-running.json")}
    return roles == ["head", "submitter", "worker"] and phases == {
        "Running"
    }, f"{', '.join(roles)}: {', '.join(phases)}"


def _store_is_whole(folder: Path) -> tuple[bool, str]:
    names = text(folder, f"{RUN}.s3.txt").split()
    wanted = [
        "run.json",
        "result.json",
        "attempts/0001/metrics.jsonl",
        "attempts/0001/driver.log",
        f"global_step_{NUM_STEPS}/COMPLETE",
    ]
    missing = [name for name in wanted if not any(seen.endswith(name) for seen in names)]
    return not missing, f"{len(names)} objects" + (f", without {', '.join(missing)}" if missing else "")


def _collect_prints(folder: Path) -> tuple[bool, str]:
    row = next((line for line in text(folder, "collect.txt").splitlines() if RUN in line), "")
    return "succeeded" in row and f"{NUM_STEPS}/{NUM_STEPS}" in row, " ".join(row.split())


def _gone_after_ttl(folder: Path) -> tuple[bool, str]:
    after = tree(folder, "after-ttl.json")
    gone = {kind: len(after[kind]) for kind in ("rayjobs", "rayclusters", "pods")}
    kept = {kind: len(after[kind]) for kind in ("configmaps", "claims")}
    is_kept = all(kept.values()) and after["release"] == "deployed"
    return not any(gone.values()) and is_kept, f"left {gone}, kept {kept}, release {after['release']}"


def _kept_after_uninstall(folder: Path) -> tuple[bool, str]:
    after = tree(folder, "after-uninstall.json")
    names, before = text(folder, "s3-after.txt").split(), text(folder, f"{RUN}.s3.txt").split()
    is_bound = [claim["status"]["phase"] for claim in after["claims"]] == ["Bound"]
    observed = f"claim bound: {is_bound}, {len(names)} of {len(before)} objects, ConfigMaps: {len(after['configmaps'])}"
    return is_bound and set(before) <= set(names) and not after["configmaps"], observed


def _model_in_store(folder: Path) -> tuple[bool, str]:
    status = rayjob(folder, "convert")["status"]
    names = [name.rpartition("/")[2] for name in text(folder, "s3-model.txt").split()]
    is_whole = set(names) >= MODEL_FILES
    return is_whole and status["jobStatus"] == "SUCCEEDED", f"{status['jobStatus']}: {', '.join(names)}"


PROMISES: dict[str, Look] = {
    "head, worker and submitter pods run": _three_roles,
    "kubectl logs -f shows one line a step": _one_line_a_step,
    "the RayJob SUCCEEDED": ended(RUN),
    "result, metrics, log and a complete checkpoint are in S3": _store_is_whole,
    "opdctl collect prints the run": _collect_prints,
    "after the TTL RayJob, RayCluster and pods are gone; release, ConfigMap and claim remain": _gone_after_ttl,
    "helm uninstall keeps the checkpoint claim and the store": _kept_after_uninstall,
    "the kind convert leaves the trained model in S3": _model_in_store,
}
