"""`opdctl logs`: the driver's log, from the pods while they live and from the object store over all attempts."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCluster, Run, StoreUrl, deadline, note
from opdctl.errors import ToolError, usage_error

if TYPE_CHECKING:
    from opdctl.logs.pods import LogPod
    from opdctl.runs.places import Found, RunPlace


class Source(StrEnum):
    """The sources of a log."""

    AUTO = "auto"
    PODS = "pods"
    STORE = "store"


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")]
From = Annotated[
    Source, typer.Option("--from", help="auto: with -f the pods of a live run; otherwise the store, if it can be read.")
]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, help="This attempt only, from the store.")]
Pod = Annotated[
    str | None, typer.Option("--pod", help="Another pod's output: its name, or its role (head, worker, submitter).")
]
Container = Annotated[str | None, typer.Option("--container", "-c", help="Container of --pod; its first by default.")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, help="Begin with the last this many lines.")]
LogTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this; never with --follow.")
]


def logs(
    run: Run,
    store: StoreUrl = None,
    follow: Follow = False,
    source: From = Source.AUTO,
    attempt: Attempt = None,
    pod: Pod = None,
    container: Container = None,
    tail: Tail = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    timeout: LogTimeout = None,
) -> None:
    """Print a run's log over all its attempts; with -f until it ends, through reconnects, retries and new pods.

    The last line, on stderr, is the state of the attempt or pod.

    Examples: `opdctl logs -f my-run -n opd` · `opdctl logs my-run --pod worker -c wait-gcs-ready` ·
    `opdctl logs quickstart --store build/quickstart/store --attempt 2 --tail 20`
    """
    from opdctl.runs.places import Finder

    if pod is not None and (attempt is not None or source is Source.STORE):
        raise usage_error("--pod is read from the cluster", fix="leave out --attempt and --from store")
    if container is not None and pod is None:
        raise usage_error("--container is one of a pod", fix="name the pod with --pod")
    limit = contextlib.nullcontext() if follow and timeout is None else deadline(timeout or DEFAULT_TIMEOUT_S)
    with limit:
        finder = Finder(
            store=store, namespace=namespace, context=context, timeout_s=timeout or DEFAULT_TIMEOUT_S,
            no_cluster=no_cluster or (source is Source.STORE and store is not None),
        )  # fmt: skip
        found = finder.locate(run)
        job = found.in_cluster.job if found.in_cluster is not None else None
        is_followed = found.place is None or (follow and job is not None and job.is_live)
        wants_pods = source is Source.PODS or (source is Source.AUTO and attempt is None and is_followed)
        if pod is not None:
            of_pod(found, pod, container, follow=follow, tail=tail)
        elif wants_pods and job is not None:
            _from_pods(found, job.submission_mode, follow=follow, tail=tail)
        elif found.place is not None:
            _from_store(found.place, attempt, follow=follow, tail=tail)
        else:
            notes = "; ".join(found.notes)
            fix = "name the store with --store URL" + (", or leave out --attempt" if attempt else "")
            raise ToolError(f"run {found.run_id}: it has no pods to read, and no store: {notes}", fix=fix)


def _from_pods(found: Found, submission_mode: str, *, follow: bool, tail: int | None) -> None:
    from opdctl.kube.rayjob import read_job
    from opdctl.logs.pods import PodFollower, find_log_pods

    assert found.api is not None
    api, run_id = found.api, found.run_id
    pods = PodFollower(api, run_id, lambda: find_log_pods(api, run_id, submission_mode), tail=tail)
    if not (pods.follow() if follow else pods.print_now()):
        note("no log yet: `opdctl status` shows the reason")
    tree = api.find(api.path("rayjobs", run_id))
    note(f"run {run_id}: {read_job(tree).describe() if tree is not None else 'its RayJob is gone'}")


def of_pod(found: Found, wanted: str, container: str | None, *, follow: bool, tail: int | None) -> None:
    """Print the output of one pod, by its name or role.

    Raises:
        ToolError: no cluster to read, or no such pod.
    """
    from opdctl.logs.pods import PodFollower, find_pod

    api, run_id = found.api, found.run_id
    if api is None:
        why = "; ".join(found.notes) or "the command names none"
        fix = "try again later" if found.notes else "name the cluster with --namespace or --context"
        raise ToolError(f"run {run_id}: --pod is read from the cluster, and {why}", fix=f"{fix}, or leave out --pod")
    if not (there := find_pod(api, run_id, wanted, container)):
        names = ", ".join(f"{pod.name} ({pod.role})" for pod in (found.in_cluster.pods if found.in_cluster else []))
        fix = (
            "name one of them with --pod, or a role that one pod has" if names else "leave out --pod for the run's log"
        )
        raise ToolError(
            f"run {run_id} has no pod {wanted!r} now, {'only ' + names if names else 'nor any other'}", fix=fix
        )
    [chosen] = there

    def find() -> list[LogPod]:
        return find_pod(api, run_id, chosen.name, chosen.container)

    follower = PodFollower(api, run_id, find, is_one_pod=True, tail=tail)
    num_lines = follower.follow() if follow else follower.print_now()
    last = next(iter(find()), None)
    state = "is gone"
    if last is not None:
        state = "has ended" if last.is_over else "is running" if last.has_started else "has not started"
    note(f"container {chosen.container} of pod {chosen.name} {state}{'' if num_lines else '; it printed nothing'}")


def _from_store(place: RunPlace, attempt: int | None, *, follow: bool, tail: int | None) -> None:
    from opdctl.logs.store import LogReader
    from opdctl.runs.attempts import attempt_end
    from opdctl.runs.listing import Listing

    if attempt is not None and attempt not in (there := Listing(place.store).folders()) and not follow:
        known = ", ".join(map(str, there)) or "none yet"
        raise ToolError(f"run {place.run_id} has no attempt {attempt}", fix=f"its attempts: {known}")
    reader = LogReader(place.store, attempt=attempt, tail=tail)
    num_lines = reader.follow() if follow else reader.print_new()
    if num_lines == 0 and not follow:
        note(f"no log yet at {place.store.url}: the first lines appear some seconds after the start")
    listing = Listing(place.store)
    if shown := attempt or max(listing.attempts(), default=0):
        note(attempt_end(listing, shown))
