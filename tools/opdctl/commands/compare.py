"""`opdctl compare`: runs side by side, with standard errors and paired differences to a base."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCache, StoreUrl, Timeout, deadline, progress, stdout
from opdctl.errors import usage_error

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN RUN...]", help="Two or more, the first is the base; by default all runs of the store."
    ),
]
Base = Annotated[str | None, typer.Option("--base", metavar="RUN", help="The run to compare with.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", "-m", help="A metric to compare, may be repeated; by default loss, accuracy and validations."
    ),
]


def compare(
    runs: Runs = None,
    base: Base = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    metric: Metrics = None,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Compare runs with a base: what differs in their specs, results with standard errors, paired differences.

    The base is the run that --base names, else the first one; of a whole store it is the best that has finished.
    Runs that differ in their seed only form a group; groups are paired by seed, evaluations (mean@n, pass@k) by problem.

    Example: `opdctl compare base-s1 base-s2 new-s1 new-s2 --store s3://experiments/opd -m opd/loss`
    """
    if runs and len(runs) < 2:
        raise usage_error("compare needs two runs or more", fix="opdctl compare BASE OTHER --store URL")
    from opdctl.runs.cache import cache_folder
    from opdctl.runs.compare_view import print_comparison
    from opdctl.runs.gather import gather
    from opdctl.runs.targets import find_runs

    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        places = find_runs(runs or [], store=store, namespace=namespace, context=context, timeout_s=timeout)
        with progress("reading runs", len(places)) as advance:
            found = gather(places, folder=folder, on_done=advance)
        records = [run.record for run in found]
        if len(records) < 2:
            raise usage_error(f"compare needs two runs or more, and here is {len(records)}", fix="name another --store")
        stores = {place.store.url: place.store for place in places}
        if base is None and runs:
            base = records[0].run_id
        print_comparison(records, stores, metrics=metric or [], console=stdout(), base=base)
