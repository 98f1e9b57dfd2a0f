"""`opdctl list`: the runs of a namespace and of a store, and how they stand."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.commands.showing import Watch, look_and_show, write_tree
from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    StoreUrl,
    Timeout,
    note,
    progress,
    stdout,
)
from opdctl.errors import EXIT_USAGE, ToolError

if TYPE_CHECKING:
    from opdctl.runs.overview import Row


# Where the cluster has runs to show, a store only adds to their rows: it is waited for up to a third of this.
MAX_TIMEOUT_BESIDE_JOBS_S = 15.0


class Format(StrEnum):
    """How the runs are written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output = Annotated[Format, typer.Option("--output", "-o", help="What to write.")]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Live runs of every namespace.")]
Selector = Annotated[
    str, typer.Option("--selector", "-l", metavar="KEY=VALUE", help="Only live runs with these labels.")
]


def list_runs(
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    all_namespaces: Everywhere = False,
    selector: Selector = "",
    output: Output = Format.TABLE,
    watch: Watch = False,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List runs, those of a namespace and those of a store in one table: phase, step, time left, score, age, GPUs.

    Examples: `opdctl list -n opd` · `opdctl list --store s3://experiments/opd -o wide`
    """
    look_and_show(
        lambda: _found(store, namespace, context, all_namespaces, selector, no_cache, timeout),
        lambda found: _show(found, output),
        is_watching=watch,
        timeout_s=timeout,
    )


def _found(
    store: str | None,
    namespace: str | None,
    context: str | None,
    everywhere: bool,
    selector: str,
    no_cache: bool,
    timeout_s: float,
) -> list[Row]:
    """The cluster is asked where it is named, and where no store is; beside its runs no store has to answer."""
    import os

    from opd.errors import StoreError
    from opdctl.kube.client import connect, is_configured
    from opdctl.kube.errors import ClusterError
    from opdctl.kube.notice import notices
    from opdctl.runs.cache import cache_folder
    from opdctl.runs.overview import live_runs, rows, standings
    from opdctl.runs.targets import STORE_VARIABLE, find_runs
    from opdctl.runs.threads import Away

    is_named = namespace is not None or context is not None or everywhere or bool(selector)
    jobs, said = [], {}
    if is_asked := is_named or (not (store or os.environ.get(STORE_VARIABLE)) and is_configured()):
        api = connect(namespace=namespace, context=context)
        jobs = live_runs(api, everywhere=everywhere, selector=selector)
        if selector and not jobs:
            return []
        try:
            said = notices(api, everywhere=everywhere, selector=selector) if jobs else {}
        except ClusterError as error:  # who may list runs everywhere may not list every ConfigMap
            note(f"note: what the runs say of themselves was left out: {error}")
    away = Away() if jobs else None
    with cache_folder(use_cache=not no_cache) as folder:
        records = []
        try:
            patience_s = min(timeout_s, MAX_TIMEOUT_BESIDE_JOBS_S) if jobs else timeout_s
            places = find_runs([], store=store, namespace=namespace, context=context, timeout_s=patience_s)
            with progress("reading runs", len(places)) as advance:
                records = standings(places, folder=folder, on_done=advance, believes_summaries=not no_cache, away=away)
        except ToolError as error:
            if not is_asked or error.exit_code != EXIT_USAGE:
                raise  # else the cluster has answered, and no live run names a store
        except StoreError as error:
            if not jobs:
                raise
            note(f"note: the store was left out: {error}")
    for url, cause in away.causes.items() if away else ():
        note(f"note: runs of {url} were left out: {cause}")
    names = {job.name for _, job, _ in jobs}
    return rows(jobs, [record for record in records if not selector or record.run_id in names], said)


def _show(found: list[Row], output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        write_tree({"runs": [row.to_json() for row in found]}, is_yaml=output is Format.YAML)
    elif output is Format.NAME:
        for row in found:
            print(row.run)
    elif found:
        from opdctl.runs.overview import table

        stdout().print(table(found, is_wide=output is Format.WIDE))
    else:
        note("no runs here: a run appears with its RayJob, or in a store with its first attempt")
