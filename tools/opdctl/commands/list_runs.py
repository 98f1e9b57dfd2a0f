"""`opdctl list`: the runs of a store and how they stand."""

from __future__ import annotations

from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    StoreUrl,
    Timeout,
    deadline,
    note,
    progress,
    stdout,
)


def list_runs(
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the runs of a store: state, step, loss, accuracy, checkpoints.

    Example: `opdctl list --store s3://experiments/opd`
    """
    from opdctl.runs.gather import cache_folder, gather
    from opdctl.runs.tables import runs_table
    from opdctl.runs.targets import find_runs

    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        places = find_runs([], store=store, namespace=namespace, context=context, timeout_s=timeout)
        with progress("reading runs", len(places)) as advance:
            runs = gather(places, folder=folder, on_done=advance)
    if runs:
        stdout().print(runs_table([run.record for run in runs]))
    else:
        note("no runs in this store: a run appears with its first attempt")
