"""`opdctl delete`: removes an ended run from the cluster, or the claims that no run needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import Context, Namespace, StoreUrl, Timeout, deadline, note
from opdctl.errors import usage_error

if TYPE_CHECKING:
    from opdctl.runs.places import Finder

Run = Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run.")]
Claim = Annotated[bool, typer.Option("--claim", help="Also delete the claim with its checkpoints, for good.")]
Results = Annotated[bool, typer.Option("--results", help="Also delete its directory in the store, for good.")]
Unused = Annotated[bool, typer.Option("--unused-claims", help="Delete the kept claims of all runs that are gone.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def delete(
    run: Run = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    claim: Claim = False,
    results: Results = False,
    unused_claims: Unused = False,
    yes: Yes = False,
    timeout: Timeout = 300.0,
) -> None:
    """Delete an ended run: its Helm release with all its objects; claim and results stay by default.

    A claim outlives its release, so that a run can be resumed. --unused-claims lists the claims without a release,
    a RayJob and a pod, and deletes them.

    Examples: `opdctl delete my-run -n opd --claim --results` · `opdctl delete --unused-claims -n opd`
    """
    from opdctl.runs.control import delete_run
    from opdctl.runs.places import Finder

    if (run is None) != unused_claims:
        raise usage_error("delete takes a run, or --unused-claims", fix="opdctl delete RUN, or --unused-claims")
    finder = Finder(store=store, namespace=namespace, context=context, timeout_s=timeout)
    with deadline(timeout):
        if run is None:
            _delete_unused(finder, yes=yes)
            return
        found = finder.locate(run, may_be_unknown=claim)
        if claim or results:
            words = [word for word, is_asked in (("its checkpoints", claim), ("its results", results)) if is_asked]
            _confirm(f"run {found.run_id}: delete {' and '.join(words)}", yes=yes)
        for line in delete_run(found, claim=claim, results=results, timeout_s=timeout):
            print(line)


def _delete_unused(finder: Finder, *, yes: bool) -> None:
    from opdctl.runs.control import unused_claims
    from opdctl.runs.tables import Sheet, ago, show

    api = finder.connect()
    claims = unused_claims(api)
    if not claims:
        note(f"every claim of a run in namespace {api.namespace} is needed")
        return
    lines = [(claim.name, claim.size, ago(claim.created_s), _left(finder, claim.run_id)) for claim in claims]
    show(Sheet(names=("claim", "size", "made", "its run"), lines=lines))
    _confirm(f"delete these {len(claims)} claims with their checkpoints", yes=yes)
    for claim in claims:
        api.delete(api.path("persistentvolumeclaims", claim.name))
        print(f"{claim.run_id}  claim {claim.name} deleted")


def _left(finder: Finder, run_id: str) -> str:
    """Return how the run of a claim ended, as far as --store or $OPDCTL_STORE shows it."""
    from opd.errors import StoreError
    from opdctl.errors import ToolError
    from opdctl.runs.listing import Listing
    from opdctl.runs.places import open_place
    from opdctl.runs.record import as_of_now, read_run
    from opdctl.runs.tables import progress_text

    url = finder.store or finder.shell_store
    if url is None:
        return "gone (--store shows more)"
    try:
        listing = Listing(open_place(url, timeout_s=finder.timeout_s).child(run_id))
        if not listing.is_run:
            return "nothing in the store"
        record = as_of_now(read_run(listing, run_id=run_id)[0], listing)
    except (StoreError, ToolError) as error:
        return f"unknown: {error}"
    return f"{record.state}, step {progress_text(record)}"


def _confirm(what: str, *, yes: bool) -> None:
    """Ask for a yes before something is deleted for good.

    Raises:
        ToolError: no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error(f"{what}: this cannot be undone", fix="say --yes")
    typer.confirm(f"{what} for good?", abort=True, err=True)
