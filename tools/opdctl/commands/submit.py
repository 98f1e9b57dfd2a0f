"""`opdctl submit`: from an experiment file to a run on a cluster."""

from typing import Annotated

import typer

from opd.redaction import redact
from opdctl.commands.render import Env, File, Name, Sets, Site, experiments_of
from opdctl.console import Context, Namespace
from opdctl.kube.client import connect
from opdctl.submit import prepare, send

Retry = Annotated[bool, typer.Option("--retry", help="Resume a run that ended for good.")]


def submit(
    experiment: File,
    site: Site = None,
    sets: Sets = None,
    env: Env = False,
    name: Name = None,
    retry: Retry = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Submit an experiment or a sweep: validate, render, dry run, install by Helm.

    A run that failed or was cancelled is resumed; a run that ended for good (fatal.json) needs --retry.

    Example: `opdctl submit exp.yaml --site site.yaml -n opd`
    """
    found = experiments_of(experiment, site=site, sets=sets, env=env, name=name)
    api = connect(namespace=namespace, context=context)
    orders = prepare(api, found, is_retry=retry)
    for order in orders:
        why = f": {redact(order.why)}" if order.why else ""
        send(api, order)
        print(f"{order.experiment.run_id}  {'resumed' if order.why else 'submitted'}{why}", flush=True)
    where = f"-n {api.namespace}" + (f" --context {context}" if context else "")
    print("next:")
    for words in ("status", "logs -f", "cancel", "collect"):
        print(
            f"  opdctl {words} {orders[0].experiment.run_id} {where}{'    (saves first)' if words == 'cancel' else ''}"
        )
