"""`opdctl doctor`: is everything there that a start needs? Each line says what is wrong and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.commands.render import Image, Overlays, Sets, Site
from opdctl.console import Context, Namespace, NoCluster, StoreUrl, Timeout, deadline, note, working
from opdctl.errors import EXIT_FAILURE, EXIT_OK

File = Annotated[Path | None, typer.Argument(metavar="[EXP.yaml]", help="Experiment file to check for.")]
Charts = Annotated[Path | None, typer.Option("--charts", help="Folder of the charts; this checkout's by default.")]


def doctor(
    experiment: File = None,
    site: Site = None,
    values: Overlays = None,
    sets: Sets = None,
    image: Image = None,
    store: StoreUrl = None,
    charts: Charts = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    timeout: Timeout = 60.0,
) -> None:
    """Check spec, store (writable, create-only), Helm, chart, trainer, and the cluster: KubeRay, rights, image, claims,
    secrets, queue, GPUs, quota; exit 1 if anything is missing.

    Example: `opdctl doctor exp.yaml --site site.yaml -n opd --image registry.example/opd@sha256:...`
    """
    import os

    from opdctl.checks import check_all
    from opdctl.cluster.client import connect, is_configured
    from opdctl.cluster.doctor import check_cluster
    from opdctl.redact import redact

    with deadline(timeout), working("looking"):
        has_cluster = not no_cluster and (namespace is not None or context is not None or is_configured())
        checks, loaded = check_all(
            experiment,
            store=store,
            charts=charts,
            env=os.environ,
            timeout_s=timeout,
            runs_here=not has_cluster,
            site=site,
            overlays=values or [],
            sets=sets or [],
            image=image,
        )
        if has_cluster:
            api = connect(namespace=namespace, context=context)
            spec, tree = (loaded.spec, loaded.values.get("cluster")) if loaded is not None else (None, None)
            checks += check_cluster(api, spec, tree)
        elif not no_cluster:
            note("note: no kubeconfig, so no cluster was looked at (KUBECONFIG, --context)")
    for check in checks:
        print(redact(f"{'ok     ' if check.is_ok else 'MISSING'} {check.name:9s} {check.message}"))
        if check.fix:
            print(redact(f"                  fix: {check.fix}"))
    raise typer.Exit(EXIT_OK if all(check.is_ok for check in checks) else EXIT_FAILURE)
