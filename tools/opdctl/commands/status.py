"""`opdctl status`: one screen about one run, from its cluster and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdctl.commands.showing import Format, Output, Watch, look_and_show, write_tree
from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    NoCluster,
    Run,
    StoreUrl,
    Timeout,
    note,
    stdout,
)

if TYPE_CHECKING:
    from opdctl.runs.view import RunView


def status(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    output: Output = Format.TEXT,
    watch: Watch = False,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show one run: phase, what it waits for, pods; step, loss, score, time left; every attempt and checkpoint.

    Examples: `opdctl status my-run -n opd -w` · `opdctl status quickstart --store build/quickstart/store -o json`
    """
    from opdctl.runs.view import look_at

    look_and_show(
        lambda: look_at(
            run, store=store, namespace=namespace, context=context, no_cluster=no_cluster, use_cache=not no_cache,
            timeout_s=timeout,
        ),
        lambda view: _show(view, output),
        is_watching=watch,
        timeout_s=timeout,
    )  # fmt: skip


def _show(view: RunView, output: Format) -> None:
    """Print the cluster's side and the store's side, as far as each could be asked."""
    from opdctl.runs.tables import status_screen
    from opdctl.runs.view import cluster_screen

    if output is not Format.TEXT:
        write_tree(view.to_json(), is_yaml=output is Format.YAML)
        return
    found, seen = view.found, view.found.in_cluster
    if found.api is not None and seen is not None and seen.is_known:
        stdout().print(cluster_screen(seen, namespace=found.api.namespace, last_line=view.last_line))
    if view.record is not None:
        stdout().print(status_screen(view.record, view.attempts))
    for remark in found.notes:
        note(f"note: {remark}")
