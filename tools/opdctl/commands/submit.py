"""`opdctl submit`: from an experiment file to a run on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.commands.render import Charts, Env, File, Image, Name, Overlays, Sets, Site
from opdctl.console import Context, Namespace, Timeout, deadline, note, working

New = Annotated[bool, typer.Option("--new", help="If the name is taken, use the next free one: name-2, name-3, ...")]
Retry = Annotated[bool, typer.Option("--retry", help="Resume a run that ended for good, after its cause is mended.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Stop after the API server's dry run; install nothing.")]


def submit(
    experiment: File,
    site: Site = None,
    values: Overlays = None,
    sets: Sets = None,
    env: Env = False,
    name: Name = None,
    new: New = False,
    retry: Retry = False,
    image: Image = None,
    charts: Charts = None,
    namespace: Namespace = None,
    context: Context = None,
    dry_run: DryRun = False,
    timeout: Timeout = 300.0,
) -> None:
    """Submit an experiment, or every cell of its `matrix`: validate, render, try on the API server, install by Helm.

    The name of a live run, of a run that succeeded, or of another spec is rejected. A run that failed or was cancelled
    is resumed from its newest checkpoint; a run that ended for good (fatal.json) needs --retry.

    Example: `opdctl submit exp.yaml --site site.yaml -n opd --image registry.example/opd@sha256:...`
    """
    import os

    from opd.redaction import redact
    from opdctl.chart.values import load_experiments
    from opdctl.kube.client import connect
    from opdctl.submit.send import Sender

    named = [f"name={name}"] if name is not None else []
    with deadline(timeout):
        variables = os.environ if env else {}
        found = load_experiments(
            experiment, site=site, overlays=values or [], env=variables, sets=[*(sets or []), *named], image=image
        )
        for item in found:
            for remark in item.notes:
                note(f"note: {item.run_id}: {remark}")
        api = connect(namespace=namespace, context=context)
        sender = Sender(api, charts=charts, is_new=new, is_retry=retry, timeout_s=timeout)
        with working("checking the names, and every object on the API server"):
            orders = sender.prepare(found)
        for order in orders:
            run_id, decision = order.experiment.run_id, order.decision
            why = f": {redact(decision.why)}" if decision.why else ""
            if dry_run:
                print(f"{run_id}  would {decision.action}{why}")
                continue
            with working(f"installing {run_id}"):
                sender.send(order)
            print(f"{run_id}  {'resumed' if decision.action == 'resume' else 'submitted'}{why}")
    if not dry_run:
        print(next_steps([order.experiment.run_id for order in orders], api.namespace, api.context))


def next_steps(run_ids: list[str], namespace: str, context: str | None) -> str:
    """Return the commands that a user needs next, ready to be copied."""
    where = f"-n {namespace}" + (f" --context {context}" if context else "")
    run_id = run_ids[0]
    words = (("status", ""), ("logs -f", ""), ("wait", ""), ("cancel", "    (saves first)"))
    lines = [f"  opdctl {command} {run_id} {where}{remark}" for command, remark in words]
    return "\n".join(["next:", *lines, f"  opdctl collect {run_id} {where}"])
