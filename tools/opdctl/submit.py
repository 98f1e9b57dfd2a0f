"""Submission to a cluster: every experiment is decided on, rendered and tried before the first is installed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd.errors import StoreError
from opd.experiment import FileSpec, dump_spec, identity, load_text, spec_hash
from opd.runs.identity import RUN_FILE, describe_changes, is_unused
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.store.access import address_of
from opd.store.base import Store
from opdctl.chart.helm import install, release_status, template, uninstall
from opdctl.chart.values import Experiment
from opdctl.console import EXIT_USAGE, ToolError, note
from opdctl.doctor import MISSING, check_named
from opdctl.kube.client import KubeApi
from opdctl.kube.objects import Rendered, dry_run
from opdctl.kube.rayjob import ClusterRun, look, wait_until_gone
from opdctl.runs.find import open_place, readable
from opdctl.runs.listing import Listing

# For KubeRay's finalizer and the pods' own end.
TIMEOUT_S = 480.0


@dataclass(frozen=True, kw_only=True)
class Name:
    """Everything that cluster and store know of a name.

    Attributes:
        release: Helm's word for the release; None without a release.
        run, result, fatal: the store's records of these names; None without one.
        live_on: the host of an attempt whose lease holds. is_unused: the store has no work of the run.
    """

    run_id: str
    cluster: ClusterRun
    release: str | None
    run: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    fatal: Mapping[str, Any] | None = None
    live_on: str = ""
    is_unused: bool = False


def decide(name: Name, spec: FileSpec, *, is_retry: bool = False) -> str:
    """Return why the run of this name is resumed; empty for a new run.

    Args:
        is_retry: resume a run that ended for good, too.
    """
    mended = _check_spec(name, spec)
    run_id, job = name.run_id, name.cluster.job
    if job is not None and job.is_live:
        resume = f"""`kubectl patch rayjob {run_id} --type=merge -p '{{"spec":{{"suspend":false}}}}'` resumes it"""
        queued = f"Kueue admits it: `opdctl status {run_id}` shows the reason of the delay"
        fixes = {"suspended": queued if job.queue else resume, "deleting": "wait until it is gone: its pods still save"}
        other = f"`opdctl cancel {run_id}` saves and ends it; --name submits another run of this spec"
        raise ToolError(f"run {run_id} is live: {job.describe()}", fix=fixes.get(job.phase, other))
    if name.result is not None or (job is not None and job.phase == "succeeded"):
        plain = {key: value for key, value in (name.result or {}).items() if isinstance(value, int | float | str)}
        plain.pop("run_id", None)
        result = f": {json.dumps(plain)}" if plain else ""
        fix = f"`opdctl collect {run_id}` shows its results; --name submits another run of this spec"
        raise ToolError(f"run {run_id} has succeeded already{result}", fix=fix)
    reason = (name.fatal or {}).get("reason", "no reason given")
    if name.fatal is not None and not (is_retry or mended):
        fix = "mend the cause, then submit it again with --retry, or under another --name"
        raise ToolError(f"run {run_id} ended for good: {reason}", fix=fix)
    if name.live_on and job is None:
        fix = "end it there, or use another --name; a killed run counts as live until its lease is over (a minute)"
        raise ToolError(f"run {run_id} is live outside this namespace, on {name.live_on}", fix=fix)
    if name.release is not None and name.release.startswith("pending"):
        fix = f"wait for it, or `helm uninstall {run_id}`"
        raise ToolError(f"release {run_id} is {name.release}: another install is running, or was killed", fix=fix)
    if mended:
        return mended
    if name.fatal is not None:
        return f"it had ended for good: {reason}"
    if job is not None:
        return f"the last RayJob ended: {job.describe()}"
    if name.release is not None:
        return "its RayJob is gone (cancelled, or cleaned up), its release is still there"
    return "it has started before, and no release is left of it" if name.run or name.cluster.is_known else ""


def _check_spec(name: Name, spec: FileSpec) -> str:
    """Compare the spec with the store's, before the first attempt with the release's ConfigMap.

    Return why another experiment may take the name; empty for the same experiment.
    """
    if name.run is not None:
        before, is_equal = dict(name.run.get("identity") or {}), name.run.get("spec_hash") == spec_hash(spec)
    elif name.cluster.experiment is not None:
        before = identity(load_text(json.dumps(name.cluster.experiment), origin="ConfigMap", is_json=True).spec)
        is_equal = before == identity(spec)
    else:
        return ""
    if is_equal:
        return ""
    # Through JSON, so that a tuple equals its stored list.
    changes = describe_changes(before, json.loads(json.dumps(identity(spec))))
    if name.is_unused:
        return f"nothing was trained under its name, and the file is another: {'; '.join(changes)}"
    lines = "\n".join(f"  {line}" for line in changes) or "  (nothing in the identity fields: another hash version)"
    raise ToolError(
        f"run {name.run_id} is another experiment; changed keys (there -> here):\n{lines}",
        fix="choose another name (--name), restore the values to resume it, or delete it with what it trained: "
        f"`opdctl delete {name.run_id} --claim --results --yes`",
        exit_code=EXIT_USAGE,
    )


def read_stored(store: Store) -> dict[str, Any]:
    """Read a run's records, as `Name` takes them."""
    if (run := store.get_json(RUN_FILE)) is None:
        return {}  # not "unused": the release may name another store
    last = (listing := Listing(store)).newest()
    live_on = last.host if last is not None and last.is_alive else ""
    records = {"run": run, "result": store.get_json(RESULT_FILE), "fatal": store.get_json(FATAL_FILE)}
    return {**records, "live_on": live_on, "is_unused": is_unused(listing.objects)}


@dataclass(frozen=True, kw_only=True)
class Order:
    """One experiment.

    Attributes:
        why: the reason why the run is resumed; empty for a new run.
        store: the run's earlier results; None if they cannot be read.
    """

    experiment: Experiment
    why: str
    store: Store | None


def prepare(api: KubeApi, experiments: Sequence[Experiment], *, is_retry: bool) -> list[Order]:
    """Decide on each experiment, with `is_retry` also on runs that ended for good; nothing is changed yet."""
    unreadable: set[str] = set()
    orders = [_order(api, item, unreadable, is_retry=is_retry) for item in experiments]
    runs = [Rendered(template(item, namespace=api.namespace)) for item in experiments]
    # Pods wait for an object that does not exist; a check that may not read is left out.
    for check in check_named(api, runs):
        if check.state == MISSING:
            note(f"warning: {check.message}; fix: {check.fix}")
    for order, rendered in zip(orders, runs, strict=True):
        _try(api, order.experiment.run_id, rendered)
    return orders


def send(api: KubeApi, order: Order) -> None:
    """Install one; a run that is resumed loses its old release first, not its claim."""
    run_id = order.experiment.run_id
    if order.why:
        uninstall(run_id, api)
        api.delete(api.path("rayjobs", run_id))  # made without Helm
        wait_until_gone(api, run_id, timeout_s=TIMEOUT_S)
        if order.store is not None:
            order.store.delete(FATAL_FILE)
    install(order.experiment, api)


def _order(api: KubeApi, item: Experiment, unreadable: set[str], *, is_retry: bool) -> Order:
    """Decide on one experiment; a store that cannot be read is noted once, in `unreadable`."""
    run_id, at, stored = item.run_id, readable(address_of(dump_spec(item.spec))), dict[str, Any]()
    store = open_place(at).child(run_id) if at is not None and at.url not in unreadable else None
    if at is not None and store is not None:
        try:
            stored = read_stored(store)
        except StoreError as error:
            store = None
            unreadable.add(at.url)
            note(f"warning: the store cannot be read from here, so only the cluster shows taken names: {error}")
    name = Name(run_id=run_id, cluster=look(api, run_id), release=release_status(run_id, api), **stored)
    why = decide(name, item.spec, is_retry=is_retry)
    return Order(experiment=item, why=why, store=store)


def _try(api: KubeApi, run_id: str, rendered: Rendered) -> None:
    """Try every object and pod on the API server; a used-up quota makes pods wait, and the run is installed."""
    rejected, waiting = dry_run(api, rendered)
    for error in waiting:
        note(f"warning: {run_id} will wait: {error}")
    if rejected:
        lines = "\n".join(f"  {error}" for error in rejected)
        fix = next((error.fix for error in rejected if error.fix), "mend the keys that the server names")
        raise ToolError(f"the API server rejects {run_id}:\n{lines}", fix=fix, exit_code=EXIT_USAGE)
