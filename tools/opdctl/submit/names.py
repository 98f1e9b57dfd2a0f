"""The meaning of a name for `opdctl submit`: start a run, resume a run, or taken."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from opd.config import FileSpec, identity, load_text, spec_hash
from opd.config.base import MAX_NAME_CHARS
from opd.runs.identity import RUN_FILE, describe_changes
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.store.base import Store
from opdctl.errors import EXIT_FAILURE, EXIT_USAGE, ToolError
from opdctl.kube.run import ClusterRun


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The store's records of a run id; `live_on` is the host of an attempt whose lease holds."""

    spec_hash: str = ""
    identity: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    fatal: Mapping[str, Any] | None = None
    live_on: str = ""


@dataclass(frozen=True, kw_only=True)
class Name:
    """Everything that cluster and store know of a name; `release` is Helm's word for it, None without a release."""

    run_id: str
    cluster: ClusterRun
    stored: Stored
    release: str | None

    @property
    def is_free(self) -> bool:
        return self.release is None and not self.cluster.is_known and self.stored == Stored()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The action: `start` a new run, or `resume` a run that ended early, because of `why`."""

    action: Literal["start", "resume"]
    why: str = ""


def decide(name: Name, spec: FileSpec, *, is_retry: bool = False) -> Decision:
    """Decide what submitting a spec under a name means.

    Args:
        is_retry: resume a run that ended for good, too.

    Raises:
        ToolError: the name belongs to another experiment (exit 2), to a live run, or to a run that has ended for good.
    """
    _check_spec(name, spec)
    job, stored = name.cluster.job, name.stored
    if job is not None and job.is_live:
        fix = {
            "suspended": f"Kueue admits it: `opdctl status {name.run_id}` shows the reason of the delay"
            if job.queue
            else f"""`kubectl patch rayjob {name.run_id} --type=merge -p '{{"spec":{{"suspend":false}}}}'` resumes it""",
            "deleting": "wait until it is gone: its pods still save",
        }.get(job.phase, f"`opdctl status {name.run_id}` shows it; `opdctl cancel {name.run_id}` saves and ends it; "
                         "--new submits another run of this spec")  # fmt: skip
        raise _taken(f"run {name.run_id} is live: {job.describe()}", fix)
    if stored.result is not None or (job is not None and job.phase == "succeeded"):
        result = f": {json.dumps(summary(stored.result))}" if stored.result else ""
        raise _taken(
            f"run {name.run_id} has succeeded already{result}",
            f"`opdctl collect {name.run_id}` shows its results; --new submits another run of this spec",
        )
    reason = (stored.fatal or {}).get("reason", "no reason given")
    if stored.fatal is not None and not is_retry:
        fix = "mend the cause, then submit it again with --retry, or under the next free name with --new"
        raise _taken(f"run {name.run_id} ended for good: {reason}", fix)
    if stored.live_on and job is None:
        raise _taken(
            f"run {name.run_id} is live outside this namespace, on {stored.live_on}",
            "end it there, or use --new; a killed run counts as live until its lease is over (a minute)",
        )
    if name.release is not None and name.release.startswith("pending"):
        raise _taken(
            f"release {name.run_id} is {name.release}: another install is running, or was killed",
            f"wait for it, or `helm uninstall {name.run_id}`",
        )
    if name.is_free:
        return Decision(action="start")
    return Decision(action="resume", why=f"it had ended for good: {reason}" if stored.fatal else _how_it_ended(name))


def _check_spec(name: Name, spec: FileSpec) -> None:
    """Compare the spec with the store's, before the first attempt with the release's ConfigMap."""
    new = identity(spec)
    if name.stored.spec_hash:
        if name.stored.spec_hash == spec_hash(spec):
            return
        before = dict(name.stored.identity or {})
    elif name.cluster.experiment is not None:
        sent = load_text(json.dumps(name.cluster.experiment), origin="ConfigMap", is_json=True).spec
        before = identity(sent)
    else:
        return
    # Through JSON, so that a tuple equals its stored list.
    changes = describe_changes(before, json.loads(json.dumps(new)))
    if not changes and not name.stored.spec_hash:
        return
    lines = "\n".join(f"  {line}" for line in changes) or "  (nothing in the identity fields: another hash version)"
    raise ToolError(
        f"run {name.run_id} is another experiment; changed keys (there -> here):\n{lines}",
        fix="choose another name (--name), take the next free one (--new), or restore the values to resume it; "
        f"`opdctl delete {name.run_id} --claim --results` frees a name under which nothing was trained",
        exit_code=EXIT_USAGE,
    )


def _how_it_ended(name: Name) -> str:
    job = name.cluster.job
    if job is not None:
        return f"the last RayJob ended: {job.describe()}"
    if name.release is not None:
        return "its RayJob is gone (cancelled, or cleaned up), its release is still there"
    return "it has started before, and no release is left of it"


def _taken(message: str, fix: str) -> ToolError:
    return ToolError(message, fix=fix, exit_code=EXIT_FAILURE)


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a result."""
    return {key: value for key, value in result.items() if isinstance(value, int | float | str) and key != "run_id"}


def read_stored(store: Store, *, lease_holder: Callable[[Store], str]) -> Stored:
    """Read the records in a run's directory.

    Args:
        lease_holder: returns the host of the attempt that is alive; empty without any.

    Raises:
        StoreError: the store is unreachable or rejects the request.
    """
    run = store.get_json(RUN_FILE)
    if run is None:
        return Stored()
    return Stored(
        spec_hash=str(run.get("spec_hash", "")),
        identity=run.get("identity"),
        result=store.get_json(RESULT_FILE),
        fatal=store.get_json(FATAL_FILE),
        live_on=lease_holder(store),
    )


def next_free(base: str, is_free: Callable[[str], bool]) -> str:
    """Return the first free name of `base`, `base-2`, `base-3`, ...; a long base is cut.

    Raises:
        ToolError: a thousand names are taken.
    """
    if is_free(base):
        return base
    for number in range(2, 1000):
        suffix = f"-{number}"
        candidate = base[: MAX_NAME_CHARS - len(suffix)].rstrip("-") + suffix
        if is_free(candidate):
            return candidate
    raise ToolError(f"no free name like {base}-2: a thousand are taken", fix="choose another name with --name")
