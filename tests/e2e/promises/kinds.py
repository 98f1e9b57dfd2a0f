"""What `make submit` of the other kinds promises."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.promises.common import (
    MODEL_FILES,
    Look,
    attempts,
    changes,
    ended,
    rayjob,
    role_of,
    text,
    training_rows,
    tree,
)

MODES = {"grpo": "HTTPMode", "opd-agent": "K8sJobMode", "eval": "HTTPMode", "convert": "K8sJobMode"}


def _submitted_by(run: str) -> Look:
    def look(folder: Path) -> tuple[bool, str]:
        mode = rayjob(folder, run)["spec"]["submissionMode"]
        return mode == MODES[run], mode

    return look


def _trained(run: str, num_steps: int) -> Look:
    def look(folder: Path) -> tuple[bool, str]:
        steps = [step for _, step in training_rows(folder, run)]
        names = text(folder, f"{run}.s3.txt").split()
        is_saved = any(name.endswith(f"global_step_{num_steps}/COMPLETE") for name in names)
        return steps == list(range(1, num_steps + 1)) and is_saved, f"steps {steps}, last one saved: {is_saved}"

    return look


def _inputs_fetched(folder: Path) -> tuple[bool, str]:
    log = text(folder, f"grpo.store/attempts/{attempts(folder, 'grpo')[0]}/driver.log")
    lines = [line.strip() for line in log.splitlines() if "s3://experiments/inputs/" in line]
    wanted = [f"s3://experiments/inputs/{name}" for name in ("student", "train.parquet", "heldout.parquet")]
    return all(any(name in line for line in lines) for name in wanted), " | ".join(lines)[:300]


def _database_mounted(folder: Path) -> tuple[bool, str]:
    newest = {pod["metadata"]["name"]: pod for pod in changes(folder, "opd-agent", "pods")}
    claims = [
        (role_of(pod), volume["persistentVolumeClaim"]["claimName"])
        for pod in newest.values()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "tool-database"
    ]
    wanted = {("head", "travel-database"), ("worker", "travel-database")}
    return wanted <= set(claims), f"{sorted(set(claims))}"


def _refused(folder: Path) -> tuple[bool, str]:
    said = text(folder, "refused.install.txt")
    roles = {role_of(pod) for pod in changes(folder, "refused", "pods")}
    no_rayjob = not list(changes(folder, "refused", "rayjobs"))
    is_said = "/data/missing.parquet" in said and "exit " in said
    return is_said and no_rayjob and roles == {"check"}, f"pods {sorted(roles)}, no RayJob: {no_rayjob}; {said[-300:]}"


def _evaluated(folder: Path) -> tuple[bool, str]:
    result = tree(folder, "eval.store/result.json")
    names = [name for name in text(folder, "eval.s3.txt").split() if name.endswith(".parquet")]
    return bool(names), f"{len(names)} files of generations; {sorted(result)}"


def _converted(folder: Path) -> tuple[bool, str]:
    names = {name.rpartition("/")[2] for name in text(folder, "s3-model.txt").split()}
    return names >= MODEL_FILES, ", ".join(sorted(names))


PROMISES: dict[str, Look] = {
    **{f"{run}: the RayJob SUCCEEDED": ended(run) for run in MODES},
    **{f"{run} is submitted in {mode}": _submitted_by(run) for run, mode in MODES.items()},
    "grpo: model and data come from s3://": _inputs_fetched,
    "grpo: every step is trained, the last one saved": _trained("grpo", 3),
    "opd-agent: every step is trained, the last one saved": _trained("opd-agent", 2),
    "opd-agent: head and worker mount the claim with the tool database": _database_mounted,
    "a wrong data path fails the install: value, path and fix are said, no RayJob and no Ray cluster exist": _refused,
    "eval: generations are in the store": _evaluated,
    "convert: GRPO's model is in the store": _converted,
}
