"""`opdctl delete`: removes an ended run from the cluster; its checkpoints and results only where asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, Timeout, deadline
from opdctl.errors import usage_error

Claim = Annotated[bool, typer.Option("--claim", help="Also delete the claim with its checkpoints, for good.")]
Results = Annotated[bool, typer.Option("--results", help="Also delete its directory in the store, for good.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def delete(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    claim: Claim = False,
    results: Results = False,
    yes: Yes = False,
    timeout: Timeout = 300.0,
) -> None:
    """Delete an ended run: its Helm release with all that it made; claim and results stay unless asked for.

    Example: `opdctl delete my-run -n opd --claim --results`
    """
    import sys

    from opdctl.runs.control import Deletion, delete_run
    from opdctl.runs.targets import locate

    with deadline(timeout):
        found = locate(
            run, store=store, namespace=namespace, context=context, no_cluster=False, timeout_s=timeout,
            may_be_unknown=claim,
        )  # fmt: skip
        wanted = Deletion(claim=claim, results=results)
        if (claim or results) and not yes:
            what = " and ".join(
                word for word, is_asked in (("its checkpoints", claim), ("its results", results)) if is_asked
            )
            if not sys.stdin.isatty():
                raise usage_error(f"run {found.run_id}: deleting {what} cannot be undone", fix="say --yes")
            typer.confirm(f"Delete {what} of {found.run_id} for good?", abort=True, err=True)
        for line in delete_run(found, wanted, timeout_s=timeout):
            print(line)
