"""`opdctl compare`: runs side by side, with standard errors and paired differences to a base."""

from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Output, Runs, StoreUrl, print_json
from opdctl.runs.compare import compare_runs, comparison_sheets
from opdctl.runs.gather import read_runs
from opdctl.runs.sheets import runs_sheet

Base = Annotated[str | None, typer.Option("--base", metavar="RUN", help="The run to compare with.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", metavar="NAME", help="A metric; repeatable.")]


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
    read = read_runs(runs or [], store=store, namespace=namespace, context=context)
    found = compare_runs(read, read[0].record.run_id if base is None and runs and read else base, metric or [])
    if output == "json":
        print_json({"differences": [row for item in found for row in item.to_rows()]})
    else:
        print(runs_sheet([run.record for run in read]), *comparison_sheets(found), sep="\n\n")
