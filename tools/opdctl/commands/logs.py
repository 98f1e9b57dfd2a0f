"""`opdctl logs`: the driver's log, from the pods while they live and from the object store over all attempts."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCluster, Run, StoreUrl, deadline, note
from opdctl.errors import ToolError, usage_error

if TYPE_CHECKING:
    from opdctl.kube.rayjob import JobState
    from opdctl.runs.targets import Found, RunPlace


class Source(StrEnum):
    """Where the log is read."""

    AUTO = "auto"
    PODS = "pods"
    STORE = "store"


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the run ends.")]
From = Annotated[
    Source, typer.Option("--from", help="auto: -f follows the pods of a live run; else the store, where there is one.")
]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, help="This attempt only, from the store.")]
Pod = Annotated[
    str | None,
    typer.Option("--pod", help="What this pod prints instead: its name, or head, worker or submitter where it is one."),
]
Container = Annotated[str | None, typer.Option("--container", "-c", help="Container of --pod; its first by default.")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, help="Begin with the last this many lines.")]
LogTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this; none with --follow.")
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
    """Print a run's log over all its attempts; with -f go on until it ends, through reconnects, retries and new pods.

    The last line, on stderr, says how the attempt or the pod ended, or that it goes on.

    Examples: `opdctl logs -f my-run -n opd` · `opdctl logs my-run --pod worker -c wait-gcs-ready` ·
    `opdctl logs quickstart --store build/quickstart/store --attempt 2 --tail 20`
    """
    import contextlib

    from opdctl.runs.targets import locate

    if pod is not None and (attempt is not None or source is Source.STORE):
        raise usage_error("--pod is read from the cluster", fix="leave out --attempt and --from store")
    if container is not None and pod is None:
        raise usage_error("--container is one of a pod", fix="name the pod with --pod")
    limit = contextlib.nullcontext() if follow and timeout is None else deadline(timeout or DEFAULT_TIMEOUT_S)
    with limit:
        found = locate(run, store=store, namespace=namespace, context=context,
                       no_cluster=no_cluster or (source is Source.STORE and store is not None), timeout_s=timeout or DEFAULT_TIMEOUT_S)  # fmt: skip
        job = found.in_cluster.job if found.in_cluster is not None else None
        wants_pods = source is Source.PODS or (
            source is Source.AUTO
            and attempt is None
            and (found.place is None or (follow and job is not None and job.is_live))
        )
        if pod is not None:
            of_pod(found, pod, container, follow=follow, tail=tail)
        elif wants_pods and job is not None:
            _from_pods(found, job, follow=follow, tail=tail)
        elif found.place is not None:
            _from_store(found.place, attempt, follow=follow, tail=tail)
        else:
            lies = f"attempt {attempt} lies in its store" if attempt and job is not None else "it has no pods"
            raise ToolError(
                f"run {found.run_id}: {lies}, and no store can be read from here: {'; '.join(found.notes)}",
                fix="name the store with --store URL" + (", or leave out --attempt" if attempt else ""),
            )


def _from_pods(found: Found, job: JobState, *, follow: bool, tail: int | None) -> None:
    from opdctl.kube.podlogs import find_log_pods
    from opdctl.kube.rayjob import read_job
    from opdctl.logs.from_pods import PodFollower

    assert found.api is not None
    api, run_id, mode = found.api, found.run_id, job.submission_mode
    pods = PodFollower(api, run_id, lambda: find_log_pods(api, run_id, mode), tail=tail)
    if not (pods.follow() if follow else pods.print_now()):
        note("no log yet: `opdctl status` says what the run waits for")
    tree = api.find(api.path("rayjobs", run_id))
    note(f"run {run_id}: {read_job(tree).describe() if tree is not None else 'its RayJob is gone'}")


def of_pod(found: Found, wanted: str, container: str | None, *, follow: bool, tail: int | None) -> None:
    from opdctl.kube.podlogs import find_pod
    from opdctl.logs.from_pods import PodFollower

    pods = found.in_cluster.pods if found.in_cluster is not None else []
    if found.api is None:
        raise ToolError(
            f"run {found.run_id}: --pod is read from the cluster, and {'; '.join(found.notes) or 'none was asked'}",
            fix="ask again when it answers, or leave out --pod"
            if found.notes
            else "name the cluster with --namespace or --context, or leave out --pod",
        )
    if not (there := find_pod(found.api, found.run_id, wanted, container)):
        names = ", ".join(f"{pod.name} ({pod.role})" for pod in pods)
        raise ToolError(
            f"run {found.run_id} has no pod {wanted!r} now, {'only ' + names if names else 'nor any other'}",
            fix="name one of them with --pod, or its role where it is the only one; without --pod comes the run's log"
            if names
            else "leave out --pod for the run's log; `opdctl status` says what the run waits for",
        )
    api, [chosen] = found.api, there
    follower = PodFollower(
        api,
        found.run_id,
        lambda: find_pod(api, found.run_id, chosen.name, chosen.container),
        is_one_pod=True,
        tail=tail,
    )
    num_lines = follower.follow() if follow else follower.print_now()
    last = next(iter(find_pod(api, found.run_id, chosen.name, chosen.container)), None)
    end = (
        "is gone"
        if last is None
        else "has ended"
        if last.is_over
        else "goes on"
        if last.has_started
        else "has not started"
    )
    note(f"container {chosen.container} of pod {chosen.name} {end}{'' if num_lines else '; it printed nothing'}")


def _from_store(place: RunPlace, attempt: int | None, *, follow: bool, tail: int | None) -> None:
    from opdctl.logs.from_store import LogReader
    from opdctl.runs.listing import Listing
    from opdctl.runs.state import attempt_end

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
