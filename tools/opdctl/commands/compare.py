"""`opdctl compare`: runs side by side, with standard errors and paired differences to a base."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    StoreUrl,
    Timeout,
    deadline,
    print_json,
    progress,
)
from opdctl.errors import usage_error


class Format(StrEnum):
    """The forms of a comparison."""

    TABLE = "table"
    JSON = "json"


Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN RUN...]", help="Two or more, the first is the base; by default all of the store."),
]
Base = Annotated[str | None, typer.Option("--base", metavar="RUN", help="The run to compare with.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", "-m", help="A metric to compare, repeatable; else loss, accuracy and validations."),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="Form of the comparison.")]


def compare(
    runs: Runs = None,
    base: Base = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    metric: Metrics = None,
    output: Output = Format.TABLE,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Compare runs with a base: changed keys of the specs, results with standard errors, paired differences.

    The base is the run that --base names, else the first run; of a whole store it is the best that has finished.
    Runs that differ in their seed only form a group; groups are paired by seed, evaluations (mean@n, pass@k) by problem.

    Example: `opdctl compare base-s1 base-s2 new-s1 new-s2 --store s3://experiments/opd -m opd/loss`
    """
    if runs and len(runs) < 2:
        raise usage_error("compare needs two runs or more", fix="opdctl compare BASE OTHER --store URL")
    from opdctl.runs.compare import best_first, group_runs
    from opdctl.runs.compare_view import compare_groups, default_metrics, print_comparison
    from opdctl.runs.gather import cache_folder, gather
    from opdctl.runs.places import Finder

    finder = Finder(store=store, namespace=namespace, context=context, timeout_s=timeout)
    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        places = finder.places(runs or [])
        with progress("reading runs", len(places)) as advance:
            records = [run.record for run in gather(places, folder=folder, on_done=advance)]
        if len(records) < 2:
            raise usage_error(f"compare needs two runs or more, and here is {len(records)}", fix="name another --store")
        stores = {place.store.url: place.store for place in places}
        base = records[0].run_id if base is None and runs else base
        if output is Format.JSON:
            groups = best_first(group_runs(records), base)
            found = compare_groups(groups, stores, metric or default_metrics(records))
            print_json({"differences": [row for item in found for row in item.to_rows()]})
            return
        print_comparison(records, stores, metrics=metric or [], base=base)
