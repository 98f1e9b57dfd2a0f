"""`opdctl list`: the runs of a namespace and of a store."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.commands.watching import Watch, look_and_show
from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    StoreUrl,
    Timeout,
    note,
    print_json,
    progress,
)
from opdctl.errors import EXIT_USAGE, ToolError

if TYPE_CHECKING:
    from opdctl.kube.rayjob import JobState
    from opdctl.runs.places import Finder
    from opdctl.runs.record import RunRecord
    from opdctl.runs.rows import Row

# Next to live runs a store only adds to their rows: it gets a third of this.
MAX_TIMEOUT_WITH_JOBS_S = 15.0


class Format(StrEnum):
    """The forms of the list."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


Output = Annotated[Format, typer.Option("--output", "-o", help="Form of the list.")]
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
    """List runs of a namespace and of a store: phase, step, time left, accuracies, age, GPUs.

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
    """Read the cluster where the user names one, or no store; then the store."""
    from opd.errors import StoreError
    from opdctl.runs.places import Finder
    from opdctl.runs.rows import live_runs, rows

    finder = Finder(store=store, namespace=namespace, context=context, timeout_s=timeout_s)
    jobs: list[tuple[str, JobState, int]] = []
    is_named = finder.is_named or everywhere or bool(selector)
    is_asked = is_named or (finder.has_cluster and not (store or finder.shell_store))
    if is_asked:
        jobs = live_runs(finder.connect(), everywhere=everywhere, selector=selector)
        if selector and not jobs:
            return []
    finder.timeout_s = min(timeout_s, MAX_TIMEOUT_WITH_JOBS_S) if jobs else timeout_s
    records: list[RunRecord] = []
    try:
        records = _records(finder, no_cache, is_patient=not jobs)
    except ToolError as error:
        if not is_asked or error.exit_code != EXIT_USAGE:
            raise  # else the cluster has answered, and no live run names a store
    except StoreError as error:
        if not jobs:
            raise
        note(f"note: the store was left out: {error}")
    names = {job.name for _, job, _ in jobs}
    return rows(jobs, [record for record in records if not selector or record.run_id in names])


def _records(finder: Finder, no_cache: bool, *, is_patient: bool) -> list[RunRecord]:
    from opdctl.runs.gather import Unreachable, cache_folder
    from opdctl.runs.rows import standings

    unreachable = None if is_patient else Unreachable()
    places = finder.places([])
    with cache_folder(use_cache=not no_cache) as folder, progress("reading runs", len(places)) as advance:
        records = standings(
            places, folder=folder, on_done=advance, believes_summaries=not no_cache, unreachable=unreachable
        )
    for url, cause in unreachable.causes.items() if unreachable else ():
        note(f"note: runs of {url} were left out: {cause}")
    return records


def _show(found: list[Row], output: Format) -> None:
    if output is Format.JSON:
        print_json({"runs": [row.to_json() for row in found]})
    elif output is Format.NAME:
        for row in found:
            print(row.run)
    elif found:
        from opdctl.runs.rows import table
        from opdctl.runs.tables import show

        show(table(found, is_wide=output is Format.WIDE))
    else:
        note("no runs here: a run appears with its RayJob, or in a store with its first attempt")
