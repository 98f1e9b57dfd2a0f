"""`opdctl logs`: the driver's log, from the pods while they live and from the object store over all attempts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCluster, StoreUrl, deadline, note
from opdctl.errors import ToolError


class Source(StrEnum):
    """Where the log is read."""

    AUTO = "auto"
    PODS = "pods"
    STORE = "store"


Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the run ends.")]
From = Annotated[
    Source, typer.Option("--from", help="auto: -f follows the pods of a live run; else the store, where there is one.")
]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, help="This attempt only, from the store.")]
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
    tail: Tail = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    timeout: LogTimeout = None,
) -> None:
    """Print a run's log over all its attempts; with -f go on until it ends, through reconnects, retries and lost pods.

    Examples: `opdctl logs -f my-run -n opd` · `opdctl logs quickstart --store build/quickstart/store --tail 20`
    """
    import contextlib

    from opdctl.logs.from_pods import PodFollower
    from opdctl.logs.from_store import LogReader
    from opdctl.runs.listing import Listing
    from opdctl.runs.locate import locate

    limit = contextlib.nullcontext() if follow and timeout is None else deadline(timeout or DEFAULT_TIMEOUT_S)
    with limit:
        found = locate(run, store=store, namespace=namespace, context=context,
                       no_cluster=no_cluster or source is Source.STORE, timeout_s=timeout or DEFAULT_TIMEOUT_S)  # fmt: skip
        job = found.in_cluster.job if found.in_cluster is not None else None
        wants_pods = source is Source.PODS or (
            source is Source.AUTO
            and attempt is None
            and (found.place is None or (follow and job is not None and job.is_live))
        )
        if wants_pods and found.api is not None and job is not None:
            place = found.place.store if found.place is not None else None
            pods = PodFollower(found.api, found.run_id, job.submission_mode, store=place, tail=tail)
            if not (pods.follow() if follow else pods.print_now()):
                note("no log yet: `opdctl status` says what the run waits for")
            return
        if found.place is None:
            raise ToolError(
                f"run {found.run_id} has no pods, and no store that can be read from here: {'; '.join(found.notes)}",
                fix="name the store with --store URL",
            )
        if attempt is not None and attempt not in (there := Listing(found.place.store).folders()) and not follow:
            known = ", ".join(map(str, there)) or "none yet"
            raise ToolError(f"run {found.run_id} has no attempt {attempt}", fix=f"its attempts: {known}")
        reader = LogReader(found.place.store, attempt=attempt, tail=tail)
        num_lines = reader.follow() if follow else reader.print_new()
        if num_lines == 0 and not follow:
            note(f"no log yet at {found.place.store.url}: the first lines appear some seconds after the start")
