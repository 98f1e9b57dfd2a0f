"""`opdctl doctor`: a run's preconditions, a line each, with the fix of what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.commands.render import Charts, Image, Name, Overlays, Sets, Site
from opdctl.console import Context, Namespace, NoCluster, StoreUrl, Timeout, deadline, note, working
from opdctl.errors import EXIT_FAILURE, EXIT_OK

File = Annotated[Path | None, typer.Argument(metavar="[EXP.yaml]", help="Experiment file to check for.")]


def doctor(
    experiment: File = None,
    site: Site = None,
    values: Overlays = None,
    sets: Sets = None,
    name: Name = None,
    image: Image = None,
    store: StoreUrl = None,
    charts: Charts = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    timeout: Timeout = 120.0,
) -> None:
    """Check a run's preconditions: experiment, store, Helm, chart, image reference; KubeRay, rights, every object and pod on
    the API server, queue, storage classes, claims, Secrets and their keys. Exit 1 if anything is MISSING.

    Example: `opdctl doctor exp.yaml --site site.yaml -n opd --image registry.example/opd@sha256:...`
    """
    import os

    from opd.config import dump_spec
    from opd.store.access import address_of
    from opdctl.doctor.cluster import check_cluster
    from opdctl.doctor.rendered import check_held
    from opdctl.doctor.report import check_chart, check_here, check_spec, check_store, unseen
    from opdctl.kube.client import NO_KUBECONFIG, connect, is_configured
    from opdctl.redact import redact

    with deadline(timeout), working("looking"):
        has_cluster = not no_cluster and (namespace is not None or context is not None or is_configured())
        is_elsewhere = has_cluster or no_cluster
        api = connect(namespace=namespace, context=context) if has_cluster else None
        named = [f"name={name}"] if name is not None else []
        checks, item, text = [], None, ""
        if experiment is not None:
            check, item = check_spec(
                experiment, os.environ, site=site, overlays=values or [], sets=[*(sets or []), *named], image=image
            )
            checks.append(check)
        at = store or (address_of(dump_spec(item.spec)) if item is not None else None)
        if at is not None:
            checks.append(check_store(at, timeout_s=timeout, is_elsewhere=is_elsewhere))
        checks += (here := check_here(runs_here=not has_cluster))
        if item is not None and here[0].state == "ok":
            found, text = check_chart(
                item, charts, namespace=api.namespace if api else namespace or "default", timeout_s=timeout,
                is_elsewhere=is_elsewhere,
            )  # fmt: skip
            checks += found
            if text and is_elsewhere:
                checks += check_held(item.spec, text)
        elif item is not None:
            checks.append(unseen("chart", "not rendered without Helm", here[0].fix))
        if api is not None:
            checks += check_cluster(api, item, text)
        elif not no_cluster:
            note(f"note: {NO_KUBECONFIG}")
    for check in checks:
        print(redact(f"{check.state:11s} {check.name:9s} {check.message}"))
        if check.fix:
            print(redact(f"{'':22s}fix: {check.fix}"))
    raise typer.Exit(EXIT_FAILURE if any(check.state == "MISSING" for check in checks) else EXIT_OK)
