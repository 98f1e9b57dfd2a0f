"""`opdctl status`: one screen about one run, from its cluster and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdctl.commands.showing import Format, about_one_run, write_tree
from opdctl.console import note, stdout

if TYPE_CHECKING:
    from opdctl.runs.view import RunView


@about_one_run
def status(view: RunView, output: Format) -> None:
    """Show one run: phase, what it waits for, pods; step, loss, score, time left; every attempt and checkpoint.

    Examples: `opdctl status my-run -n opd -w` · `opdctl status quickstart --store build/quickstart/store -o json`
    """
    if output is Format.TEXT:
        print_screens(view)
    else:
        write_tree(view.to_json(), is_yaml=output is Format.YAML)


def print_screens(view: RunView) -> None:
    """The cluster's side and the store's side, as far as each could be asked."""
    from opdctl.runs.cluster_view import cluster_screen
    from opdctl.runs.tables import status_screen

    found, seen = view.found, view.found.in_cluster
    if found.api is not None and seen is not None and seen.is_known:
        stdout().print(cluster_screen(seen, namespace=found.api.namespace, last_line=view.last_line))
    if view.record is not None:
        stdout().print(status_screen(view.record, view.attempts))
    for remark in found.notes:
        note(f"note: {remark}")
