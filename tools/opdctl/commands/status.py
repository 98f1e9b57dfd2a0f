"""`opdctl status`: one screen about one run, from its cluster and its store."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    NoCluster,
    StoreUrl,
    Timeout,
    deadline,
    note,
    stdout,
)  # fmt: skip

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]


def status(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show one run: phase, what it waits for, pods; step, loss, accuracy, time left; every attempt and checkpoint.

    Examples: `opdctl status my-run -n opd` · `opdctl status quickstart --store build/quickstart/store`
    """
    from opdctl.kube.podlogs import last_line
    from opdctl.runs.cluster_view import cluster_screen
    from opdctl.runs.gather import cache_folder, gather
    from opdctl.runs.listing import Listing
    from opdctl.runs.locate import locate
    from opdctl.runs.state import attempt_lines
    from opdctl.runs.tables import status_screen

    with deadline(timeout):
        found = locate(run, store=store, namespace=namespace, context=context, no_cluster=no_cluster, timeout_s=timeout)
        seen = found.in_cluster
        if found.api is not None and seen is not None and seen.is_known:
            line = ""
            if found.place is None and seen.job is not None:
                line = last_line(found.api, found.run_id, seen.job.submission_mode)
            stdout().print(cluster_screen(seen, namespace=found.api.namespace, last_line=line))
        if found.place is not None:
            with cache_folder(use_cache=not no_cache) as folder:
                [gathered] = gather([found.place], folder=folder)
                attempts = attempt_lines(Listing(found.place.store))
            stdout().print(status_screen(gathered.record, attempts))
    for remark in found.notes:
        note(f"note: {remark}")
