"""`opdctl doctor`: a run's preconditions, a line each, with the fix of what is missing."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdctl.commands.render import Charts, Image, Name, Overlays, Sets, Site
from opdctl.console import Context, Namespace, NoCluster, StoreUrl, Timeout, deadline, note, print_json, working
from opdctl.errors import EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from opdctl.doctor.check import Check


class Format(StrEnum):
    """The forms of the checks."""

    TEXT = "text"
    JSON = "json"


File = Annotated[Path | None, typer.Argument(metavar="[EXP.yaml]", help="Experiment file to check for.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="Form of the checks.")]


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
    output: Output = Format.TEXT,
    timeout: Timeout = 120.0,
) -> None:
    """Check a run's preconditions on this machine and in the cluster; exit 1 if anything is MISSING.

    Example: `opdctl doctor exp.yaml --site site.yaml -n opd --image registry.example/opd@sha256:...`
    """
    named = [f"name={name}"] if name is not None else []
    files = {"site": site, "overlays": values or [], "sets": [*(sets or []), *named], "image": image}
    with deadline(timeout), working("looking"):
        checks = _checks(experiment, files, store, charts, namespace, context, no_cluster, timeout)
    if output is Format.JSON:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        from opd.redaction import redact

        for check in checks:
            print(redact(f"{check.state:11s} {check.name:9s} {check.message}"))
            if check.fix:
                print(redact(f"{'':22s}fix: {check.fix}"))
    raise typer.Exit(EXIT_FAILURE if any(check.state == "MISSING" for check in checks) else EXIT_OK)


def _checks(
    experiment: Path | None,
    files: dict[str, Any],
    store: str | None,
    charts: Path | None,
    namespace: str | None,
    context: str | None,
    no_cluster: bool,
    timeout_s: float,
) -> list[Check]:
    from opd.config import dump_spec
    from opd.store.access import address_of
    from opdctl.doctor.check import bad, unseen
    from opdctl.doctor.cluster import check_cluster
    from opdctl.doctor.here import check_chart, check_helm, check_spec, check_store
    from opdctl.kube.client import NO_KUBECONFIG, connect, is_configured
    from opdctl.kube.errors import ClusterError

    checks, item, text, api = [], None, "", None
    failure: Check | None = None
    if not no_cluster and (namespace is not None or context is not None or is_configured()):
        try:
            api = connect(namespace=namespace, context=context)
        except ClusterError as error:
            failure = bad("cluster", str(error), error.fix)
    if experiment is not None:
        check, item = check_spec(experiment, {}, **files)
        checks.append(check)
    at = store or (address_of(dump_spec(item.spec)) if item is not None else None)
    if at is not None:
        checks.append(check_store(at, timeout_s=timeout_s))
    checks.append(helm := check_helm())
    if item is not None and helm.state == "ok":
        home = api.namespace if api else namespace or "default"
        found, text = check_chart(item, charts, namespace=home, timeout_s=timeout_s)
        checks += found
    elif item is not None:
        checks.append(unseen("chart", "not rendered without Helm", helm.fix))
    if api is not None:
        checks += check_cluster(api, item, text)
    elif failure is not None:
        checks.append(failure)
    elif not no_cluster:
        note(f"note: {NO_KUBECONFIG}")
    return checks
