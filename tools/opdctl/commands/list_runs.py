"""`opdctl list`: the runs of a namespace and of a store, and how they stand."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

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
from opdctl.errors import EXIT_USAGE, ToolError

if TYPE_CHECKING:
    from opdctl.runs.overview import Row


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
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show them again every ten seconds, until Ctrl-C.")]
WATCH_S = 10.0


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
    import time

    while True:
        with deadline(timeout):
            found = _found(store, namespace, context, all_namespaces, selector, no_cache)
        _show(found, output)
        if not watch:
            return
        time.sleep(WATCH_S)


def _found(
    store: str | None, namespace: str | None, context: str | None, everywhere: bool, selector: str, no_cache: bool
) -> list[Row]:
    """The cluster is asked where it is named, and where no store is."""
    import os

    from opdctl.kube.client import connect, is_configured
    from opdctl.runs.gather import cache_folder, gather
    from opdctl.runs.overview import live_runs, rows
    from opdctl.runs.targets import STORE_VARIABLE, find_runs

    is_named = namespace is not None or context is not None or everywhere or bool(selector)
    jobs = []
    if is_asked := is_named or (not (store or os.environ.get(STORE_VARIABLE)) and is_configured()):
        jobs = live_runs(connect(namespace=namespace, context=context), everywhere=everywhere, selector=selector)
    with cache_folder(use_cache=not no_cache) as folder:
        try:
            places = find_runs([], store=store, namespace=namespace, context=context, timeout_s=DEFAULT_TIMEOUT_S)
        except ToolError as error:
            if not is_asked or error.exit_code != EXIT_USAGE:
                raise
            places = []  # the cluster has answered, and no live run names a store
        with progress("reading runs", len(places)) as advance:
            records = [run.record for run in gather(places, folder=folder, on_done=advance)]
    names = {job.name for _, job, _ in jobs}
    return rows(jobs, [record for record in records if not selector or record.run_id in names])


def _show(found: list[Row], output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        import json

        import yaml

        from opdctl.runs.export import finite

        tree = finite({"runs": [row.to_json() for row in found]})
        if output is Format.JSON:
            print(json.dumps(tree, indent=1, ensure_ascii=False))
        else:
            print(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), end="")
    elif output is Format.NAME:
        print("\n".join(row.run for row in found))
    elif found:
        from opdctl.runs.overview import table

        console = stdout()
        console.print(table(found, width=console.width, is_wide=output is Format.WIDE))
    else:
        note("no runs here: a run appears with its RayJob, or in a store with its first attempt")
