"""End of a run on its cluster: waiting for it, deleting its objects, and the claims that no run needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opd.errors import StoreUnavailable
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.store.base import Store
from opdctl.chart.helm import Where, uninstall
from opdctl.console import note
from opdctl.errors import ToolError
from opdctl.kube.client import RUN_LABEL, KubeApi, unix_s
from opdctl.kube.errors import ClusterUnreachable
from opdctl.kube.run import ClusterRun, experiments, look
from opdctl.runs.attempts import AttemptLine, attempt_line
from opdctl.runs.listing import Listing
from opdctl.runs.places import Found
from opdctl.runs.record import RunRecord

POLL_S = 2.0
STORE_POLL_S = 5.0
# A note at every change, and at times while nothing changes.
NOTE_INTERVAL_S = 30.0


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a run; `is_gone` means that the RayJob disappeared before one was seen."""

    is_success: bool
    reason: str
    is_gone: bool = False


def job_end(run: ClusterRun) -> End | None:
    """Return the end of the RayJob; None while it is live."""
    job = run.job
    if job is None or job.phase == "deleting":
        return End(is_success=False, reason="its RayJob was deleted before it had ended", is_gone=True)
    if job.is_live:
        return None
    return End(is_success=job.phase == "succeeded", reason="; ".join([job.describe(), *run.alarms]))


def wait_for_job(api: KubeApi, run_id: str, *, on_change: Callable[[str], None]) -> End:
    """Wait until the RayJob has ended, through retries and an unreachable API server.

    Args:
        on_change: called with each new phase and each new reason of a delay.
    """
    shown = ""
    while True:
        try:
            run = look(api, run_id)
            if (end := job_end(run)) is not None:
                return end
            text = run.describe()
        except ClusterUnreachable as error:
            text = f"the cluster is unreachable, waiting for it: {error}"
        if text != shown:
            on_change(f"{run_id}: {text}")
            shown = text
        time.sleep(POLL_S)


def wait_for_end(
    store: Store,
    *,
    silent_s: float,
    on_note: Callable[[str], None] = note,
    poll_s: float = STORE_POLL_S,
) -> End:
    """Wait until the run has its result, or an end that no retry can mend.

    Args:
        silent_s: the run has failed when its last attempt has been over or silent this long.
        on_note: called once for each attempt that ended, and once while the store is unreachable.
    """
    is_unreachable, noted = False, 0
    while True:
        try:
            end, last = _end(Listing(store), silent_s)
            if end is not None:
                return end
            if last is not None and last.end and last.attempt != noted:
                noted = last.attempt
                left_s = max(silent_s - (time.time() - last.last_sign_s), 0)
                on_note(f"attempt {last.attempt} {last.end}; waiting {left_s:.0f} s for another (--silent-after)")
            is_unreachable = False
        except StoreUnavailable as error:
            if not is_unreachable:
                on_note(f"the store is unreachable, waiting for it: {error}")
            is_unreachable = True
        time.sleep(poll_s)


def _end(listing: Listing, silent_s: float) -> tuple[End | None, AttemptLine | None]:
    """Return the run's end; without an end its newest attempt."""
    if RESULT_FILE in listing:
        return End(is_success=True, reason=""), None
    if FATAL_FILE in listing:
        return End(is_success=False, reason=str((listing.store.get_json(FATAL_FILE) or {}).get("reason", ""))), None
    if not (attempts := listing.attempts()):
        return None, None
    last = attempt_line(listing, attempts[-1])
    age_s = time.time() - last.last_sign_s
    if age_s < silent_s:
        return None, last
    how = f"ended ({last.outcome}): {last.detail}" if last.outcome else "gave no sign of life"
    return End(is_success=False, reason=f"attempt {last.attempt} {how}, and no other followed for {age_s:.0f} s"), None


def wait_until_gone(api: KubeApi, run_id: str, *, timeout_s: float) -> None:
    """Wait until RayJob and pods are gone.

    Raises:
        ToolError: it took longer; the deletion continues.
    """
    started_s = noted_s = time.monotonic()
    shown = ""
    while True:
        try:
            run = look(api, run_id)
            if run.job is None and not run.pods:
                return
            num_saving = sum(pod.why.startswith("terminating") for pod in run.pods)
            phase = run.job.phase if run.job is not None else "RayJob is gone"
            text = f"{phase}, {len(run.pods)} pods" + (f", {num_saving} of them terminating" if num_saving else "")
        except ClusterUnreachable as error:
            text = f"the cluster is unreachable, waiting for it: {error}"
        now_s = time.monotonic()
        if now_s - started_s > timeout_s:
            fix = "the deletion continues: `opdctl status` shows it; or wait longer with --timeout"
            raise ToolError(f"run {run_id} is not gone yet after {timeout_s:g} s: {text}", fix=fix)
        if text != shown or now_s - noted_s > NOTE_INTERVAL_S:
            note(f"{run_id}: {text} ({now_s - started_s:.0f} s)")
            shown, noted_s = text, now_s
        time.sleep(POLL_S)


def what_is_saved(before: RunRecord | None, after: RunRecord | None) -> str:
    """Return what a cancelled run keeps, from its store before and after."""
    if after is None:
        return "no store shows from here what it saved: the newest checkpoint on its volume counts"
    if after.kind == "pipeline":
        return f"{after.last_step or 0} stages have finished; the next start resumes the stage after them"
    if not after.complete_steps:
        return "no checkpoint is complete: it would start from the beginning"
    newest = after.complete_steps[-1]
    text = f"the newest complete checkpoint is step {newest}"
    had = before.complete_steps[-1] if before is not None and before.complete_steps else None
    if had is not None and newest > had:
        text += f", saved by this request (step {had} before)"
    if after.last_step is not None and after.last_step > newest:
        text += f"; steps {newest + 1} to {after.last_step} will be computed again"
    return text


def delete_run(found: Found, *, claim: bool, results: bool, timeout_s: float) -> list[str]:
    """Delete a run; return what is gone and what remains, one line each.

    Args:
        claim: delete the claim with its checkpoints, too.
        results: delete its directory in the store, too.

    Raises:
        ToolError: the run is live, or a part that the user named cannot be reached.
    """
    if results and found.place is None:
        raise ToolError(
            f"the results of {found.run_id} cannot be deleted: {'; '.join(found.notes) or 'there are none'}",
            fix="name its store with --store URL, or leave out --results",
        )
    lines = _from_cluster(found, claim=claim, timeout_s=timeout_s) if found.api is not None else []
    if results and found.place is not None:
        found.place.store.delete_tree("")
        lines.append(f"{found.run_id}  results deleted: {found.place.store.url}")
    elif not lines:
        fix = "--results deletes its directory in the store; name the cluster with -n to delete its release"
        raise ToolError(f"run {found.run_id}: nothing of it is in a cluster, and its results stay", fix=fix)
    elif found.place is not None:
        lines.append(f"{found.run_id}  results stay: {found.place.store.url}")
    return lines


def _from_cluster(found: Found, *, claim: bool, timeout_s: float) -> list[str]:
    api, run = found.api, found.in_cluster
    assert api is not None
    assert run is not None
    if run.job is not None and run.job.is_live and run.job.phase != "deleting":
        raise ToolError(
            f"run {found.run_id} is live: {run.job.describe()}",
            fix=f"`opdctl cancel {found.run_id} -n {api.namespace}` saves and ends it first",
        )
    lines = []
    if uninstall(found.run_id, Where(namespace=api.namespace, context=api.context), timeout_s=timeout_s):
        lines.append(f"{found.run_id}  release deleted: RayJob, pods, experiment, policies")
    if run.job is not None or run.pods:
        api.delete(api.path("rayjobs", found.run_id))
        wait_until_gone(api, found.run_id, timeout_s=timeout_s)
    name = f"{found.run_id}-checkpoints"
    path = api.path("persistentvolumeclaims", name)
    if claim:
        is_gone = api.delete(path)
        lines.append(f"{found.run_id}  claim {name} {'deleted' if is_gone else 'was not there'}")
    elif api.find(path) is not None:
        lines.append(f"{found.run_id}  claim {name} stays: submitting the run again resumes from it")
    return lines


@dataclass(frozen=True, kw_only=True)
class UnusedClaim:
    """A run's claim in a namespace that has neither its release, nor its RayJob, nor a pod that mounts it."""

    name: str
    run_id: str
    size: str
    created_s: float


def unused_claims(api: KubeApi) -> list[UnusedClaim]:
    """Return the claims that no run of the namespace needs, by name.

    Raises:
        ClusterError: the API server does not answer, or rejects a request.
    """
    installed = {*experiments(api), *(tree["metadata"]["name"] for tree in api.list(api.path("rayjobs")))}
    mounted = {name for pod in api.list(api.path("pods")) for name in _claims_of(pod)}
    found = [
        UnusedClaim(
            name=tree["metadata"]["name"],
            run_id=tree["metadata"]["labels"][RUN_LABEL],
            size=tree["spec"]["resources"]["requests"]["storage"],
            created_s=unix_s(tree["metadata"].get("creationTimestamp")),
        )
        for tree in api.list(api.path("persistentvolumeclaims"), selector=RUN_LABEL)
    ]
    return sorted(
        (claim for claim in found if claim.run_id not in installed and claim.name not in mounted),
        key=lambda claim: claim.name,
    )


def _claims_of(pod: dict[str, Any]) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item]
