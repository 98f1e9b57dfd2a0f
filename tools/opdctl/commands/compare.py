"""`opdctl compare`: runs side by side, with standard errors and paired differences to a base."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Output, StoreUrl, print_json, usage_error

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Two or more; else all of the store."),
]
Base = Annotated[str | None, typer.Option("--base", metavar="RUN", help="The run to compare with.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", "-m", metavar="NAME", help="A metric to compare; repeatable."),
]


def compare(
    runs: Runs = None,
    base: Base = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    metric: Metrics = None,
    output: Output = "table",
) -> None:
    """Compare runs with a base: changed keys, results with errors, paired differences.

    The base is --base, else the first run; of a whole store the best that has finished. Runs that differ in their
    seed form a group. Metrics are paired by seed, evaluations by problem.

    Example: `opdctl compare base-s1 base-s2 new-s1 new-s2 --store URL -m opd/loss`
    """
    from opdctl.runs.compare import best_first, compare_groups, comparison_sheets, default_metrics, group_runs
    from opdctl.runs.gather import read_runs
    from opdctl.runs.sheets import runs_sheet
    from opdctl.tables import show

    read = read_runs(runs or [], store=store, namespace=namespace, context=context)
    records = [run.record for run in read]
    base = records[0].run_id if base is None and runs and records else base
    groups = best_first(group_runs(records), base) if records else []
    if len(groups) < 2:
        fix = "opdctl compare BASE OTHER --store URL; opdctl.band(runs, METRIC) averages the seeds of one spec"
        raise usage_error(f"compare needs runs of two specs or more, and here is {len(groups)}", fix=fix)
    found = compare_groups(
        groups, {run.record.url: run.listing.store for run in read}, metric or default_metrics(records)
    )
    if output == "json":
        print_json({"differences": [row for item in found for row in item.to_rows()]})
    else:
        show([runs_sheet(records), *comparison_sheets(found)])
