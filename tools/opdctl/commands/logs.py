"""`opdctl logs`: the driver's log, from the pods while they live and from the object store over all attempts."""

from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note
from opdctl.kube.rayjob import read_job
from opdctl.logs.pods import PodFollower
from opdctl.logs.store import LogReader
from opdctl.runs.find import Finder, Found, RunPlace
from opdctl.runs.listing import Listing
from opdctl.tables import ago

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, metavar="N", help="Begin with the last N lines.")]


def logs(
    run: Run,
    store: StoreUrl = None,
    follow: Follow = False,
    tail: Tail = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print a run's log over all its attempts; with -f until the run ends.

    -f follows the pods of a live run; otherwise the store is read. The last line, on stderr, is the state.

    Examples: `opdctl logs -f my-run -n opd` · `opdctl logs my-run --tail 20`
    """
    found = Finder(store=store, namespace=namespace, context=context).locate(run)
    job = found.in_cluster.job if found.in_cluster is not None else None
    is_live = job is not None and job.is_live
    if job is not None and (found.place is None or (follow and is_live)):
        _from_pods(found, follow=follow, tail=tail)
    elif found.place is not None:
        _from_store(found.place, follow=follow, tail=tail)
    else:
        text = f"run {found.run_id}: no pods to read, and no store: {'; '.join(found.notes)}"
        raise ToolError(text, fix="name the store with --store URL")


def _from_pods(found: Found, *, follow: bool, tail: int | None) -> None:
    assert found.api is not None
    api, run_id = found.api, found.run_id
    pods = PodFollower(api, run_id, tail=tail)
    if not (pods.follow() if follow else pods.print_now()):
        note("no log yet: `opdctl status` shows the reason")
    tree = api.find(api.path("rayjobs", run_id))
    note(f"run {run_id}: {read_job(tree).describe() if tree is not None else 'its RayJob is gone'}")


def _from_store(place: RunPlace, *, follow: bool, tail: int | None) -> None:
    reader = LogReader(place.store, tail=tail)
    if not (reader.follow() if follow else reader.print_new()):
        note(f"no log yet at {place.store.url}: the first lines appear some seconds after the start")
    if (last := Listing(place.store).newest()) is not None:
        alive = f"attempt {last.attempt} is running: its last sign of life came {ago(last.last_sign_s)}"
        note(f"attempt {last.attempt} ended: {last.end}" if last.end else alive)
