"""`opdctl top`: what runs do with their GPUs, and where the time of a step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.commands.showing import Format, Output, Watch, look_and_show, write_tree
from opdctl.completion import complete_run
from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCache, StoreUrl, Timeout, note, stdout
from opdctl.errors import EXIT_USAGE, ToolError

if TYPE_CHECKING:
    from opdctl.report.use import Use

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Runs; those that are running by default.", autocompletion=complete_run),
]


def top(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
    watch: Watch = False,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what runs do with their GPUs: seconds a step, percent of each part, tokens a second and GPU, peak memory.

    Means over the newest twenty steps, from the metrics in the store; GPUs as the pods hold them.

    Examples: `opdctl top -n opd -w` · `opdctl top quickstart --store build/quickstart/store`
    """
    from opdctl.report.use import use_table

    def show(found: list[Use]) -> None:
        if output is not Format.TEXT:
            write_tree({"runs": [use.to_json() for use in found]}, is_yaml=output is Format.YAML)
        elif found:
            stdout().print(use_table(found))
        else:
            note("no run is running here: `opdctl list` shows the others")

    look_and_show(
        lambda: _found(runs or [], store, namespace, context, use_cache=not no_cache, timeout_s=timeout),
        show,
        is_watching=watch,
        timeout_s=timeout,
    )


def _found(
    runs: list[str], store: str | None, namespace: str | None, context: str | None, *, use_cache: bool, timeout_s: float
) -> list[Use]:
    """A cluster is asked for GPUs where it is named."""
    import os

    from opdctl.kube.client import connect, is_configured
    from opdctl.report.use import use_of
    from opdctl.runs.cache import cache_folder
    from opdctl.runs.gather import gather
    from opdctl.runs.overview import live_runs
    from opdctl.runs.targets import STORE_VARIABLE, find_runs

    held: dict[str, int] | None = None
    if namespace is not None or context is not None:
        jobs = live_runs(connect(namespace=namespace, context=context), everywhere=False, selector="")
        held = {job.name: gpus for _, job, gpus in jobs}
    try:
        places = find_runs(runs, store=store, namespace=namespace, context=context, timeout_s=timeout_s)
    except ToolError as error:
        has_store = store or os.environ.get(STORE_VARIABLE)
        if runs or has_store or not is_configured() or error.exit_code != EXIT_USAGE:
            raise
        return []  # the cluster has answered, and none of its runs names a store
    with cache_folder(use_cache=use_cache) as folder:
        return [
            use_of(run.record, run.metrics(), gpus=held.get(run.record.run_id, 0) if held is not None else None)
            for run in gather(places, folder=folder)
            if runs or run.record.state == "running"
        ]
