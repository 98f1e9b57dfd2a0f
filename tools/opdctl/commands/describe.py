"""`opdctl describe`: everything about one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdctl.commands.showing import Format, about_one_run, write_tree
from opdctl.commands.status import print_screens
from opdctl.console import stdout

if TYPE_CHECKING:
    from opdctl.runs.view import RunView


@about_one_run
def describe(view: RunView, output: Format) -> None:
    """Describe one run: what `status` shows, its events, the teacher's preflight, where log, checkpoint and results lie, and its experiment.

    Examples: `opdctl describe my-run -n opd` · `opdctl describe my-run --store s3://experiments/opd -o json`
    """
    import yaml

    from opdctl.redact import redact, redact_tree
    from opdctl.runs.cluster_view import events_table
    from opdctl.runs.layout import facts
    from opdctl.runs.tables import preflight_table

    if output is not Format.TEXT:
        write_tree(view.description(), is_yaml=output is Format.YAML)
        return
    print_screens(view)
    console = stdout()
    if (seen := view.found.in_cluster) is not None and seen.events:
        console.print(events_table(seen.events))
    if view.preflight:
        console.print(preflight_table(view.preflight))
    if view.places:
        console.print("places", style="italic")
        console.print(facts((name, redact(url)) for name, url in view.places.items()))
    if view.spec:
        console.print("experiment", style="italic")
        print(yaml.safe_dump(redact_tree(view.spec), sort_keys=False, allow_unicode=True), end="")
