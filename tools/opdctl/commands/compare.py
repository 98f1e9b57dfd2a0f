"""`opdctl compare`: runs side by side, with standard errors and paired differences to the first."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCache, StoreUrl, Timeout, deadline, progress, stdout
from opdctl.errors import usage_error

Runs = Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Two or more runs; the first is the base.")]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", "-m", help="A metric to compare; loss, accuracy and validations.")
]


def compare(
    runs: Runs,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    metric: Metrics = None,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Compare runs with the first one: what differs in their specs, results with standard errors, paired differences.

    Runs that differ in their seed only form a group; groups are paired by seed, evaluations by problem.

    Example: `opdctl compare base-s1 base-s2 new-s1 new-s2 --store s3://experiments/opd -m opd/loss`
    """
    if len(runs) < 2:
        raise usage_error("compare needs two runs or more", fix="opdctl compare BASE OTHER --store URL")
    from opdctl.runs.compare_view import print_comparison
    from opdctl.runs.gather import cache_folder, gather
    from opdctl.runs.targets import find_runs

    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        places = find_runs(runs, store=store, namespace=namespace, context=context, timeout_s=timeout)
        with progress("reading runs", len(places)) as advance:
            found = gather(places, folder=folder, on_done=advance)
        records = [run.record for run in found]
        stores = {place.store.url: place.store for place in places}
        print_comparison(records, stores, metrics=metric or [], console=stdout())
