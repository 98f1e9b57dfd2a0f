"""`opdctl doctor`: a run's preconditions, a line each, with the fix of what is missing."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from opdctl.commands.render import Charts, Image, Name, Overlays, Sets, Site, experiments_of
from opdctl.console import (
    EXIT_FAILURE,
    EXIT_OK,
    Context,
    Namespace,
    Output,
    StoreUrl,
    ToolError,
    note,
    print_json,
)

if TYPE_CHECKING:
    from opd.store.access import StoreAddress
    from opdctl.chart.values import Experiment
    from opdctl.doctor import Check

File = Annotated[Path | None, typer.Argument(metavar="EXP.yaml", help="Experiment file.")]
NoCluster = Annotated[bool, typer.Option("--no-cluster", help="Leave out the cluster.")]
FORWARD = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this shell; a server inside the cluster is reached by a forwarded "
    "port and AWS_ENDPOINT_URL"
)
# Replaces an image that the file does not name, so that the chart's other rules are tried.
ANY_IMAGE = f"image.invalid/opd@sha256:{'0' * 64}"


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
    output: Output = "table",
) -> None:
    """Check a run's preconditions; exit 1 if anything is MISSING.

    Example: `opdctl doctor exp.yaml --site site.yaml -n opd`
    """
    from opd.experiment import SpecError, dump_spec
    from opd.redaction import redact
    from opd.store.access import address_of
    from opdctl.doctor import MISSING, OK, Check, check_cluster
    from opdctl.kube.client import NO_KUBECONFIG, ClusterError, connect, is_configured

    item, text, api = None, "", None
    checks: list[Check] = []
    in_cluster: list[Check] = []
    if not no_cluster and (namespace is not None or context is not None or is_configured()):
        try:
            api = connect(namespace=namespace, context=context)
        except ClusterError as error:
            in_cluster = [Check("cluster", MISSING, str(error), error.fix)]
    elif not no_cluster:
        note(f"note: {NO_KUBECONFIG}")
    if experiment is not None:
        try:
            item, *others = experiments_of(experiment, site=site, values=values, sets=sets, name=name, image=image)
            more = f" and {len(others)} more" if others else ""
            checks.append(Check("spec", OK, f"{experiment}: kind {item.spec.kind}, name {item.run_id}{more}"))
        except SpecError as error:
            checks.append(Check("spec", MISSING, str(error), "mend the keys named above"))
    if at := store or (address_of(dump_spec(item.spec)) if item is not None else None):
        checks.append(check_store(at))
    if item is not None:
        found, text = _check_chart(item, charts, namespace=api.namespace if api else namespace or "default")
        checks += found
    checks += check_cluster(api, item, text) if api is not None else in_cluster
    if output == "json":
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            print(redact(f"{check.state:11s} {check.name:9s} {check.message}"))
            if check.fix:
                print(redact(f"{'':22s}fix: {check.fix}"))
    raise typer.Exit(EXIT_FAILURE if any(check.state == "MISSING" for check in checks) else EXIT_OK)


def check_store(at: str | StoreAddress) -> Check:
    """Check that the store can be written from here, and that it decides which of two attempts was first.

    It writes one small object, which stays. A run's own credentials and network may reach a store that this shell cannot.
    """
    from opd.errors import StoreError, StoreUnavailable
    from opd.store.access import StoreAddress
    from opdctl.doctor import MISSING, OK, UNSEEN, WARNING, Check
    from opdctl.runs.find import open_place

    if isinstance(at, StoreAddress) and urlsplit(at.url).scheme in ("", "file"):
        text = f"store.url is {at.url}: a folder of the run's own volume, which only its pods see"
        return Check(
            "store", WARNING, text, "set store.url to a bucket (s3://BUCKET/PREFIX), to read results from anywhere"
        )
    try:
        place = open_place(at)
        place.check_create_only()
    except ToolError as error:
        return Check("store", MISSING, str(error), error.fix)
    except StoreError as error:
        if isinstance(at, StoreAddress) and (isinstance(error, StoreUnavailable) or "credentials" in str(error)):
            return Check("store", UNSEEN, f"not from this shell: {error}", FORWARD)
        return Check(
            "store", MISSING, str(error), "check the URL, the credentials in the environment and that the bucket exists"
        )
    return Check("store", OK, f"{place.url}: writable, create-only writes are honoured")


def _check_chart(item: Experiment, charts: Path | None, *, namespace: str) -> tuple[list[Check], str]:
    """Check image reference and chart; return the rendered text, too, empty where the chart rejects the file."""
    from opd.experiment.tree import merge
    from opdctl.chart.helm import find_chart, template
    from opdctl.doctor import MISSING, OK, Check

    ref = ((item.values.get("cluster") or {}).get("image") or {}).get("ref")
    if ref:
        out = [Check("image", OK, f"{ref}: only the nodes can try to pull it")]
    else:
        fix = "`images/build.sh trainer --push REGISTRY` prints the reference: set cluster.image.ref, or use --image"
        out = [Check("image", MISSING, "cluster.image.ref is not set: the chart rejects the file", fix)]
        item = replace(item, values=merge(item.values, {"cluster": {"image": {"ref": ANY_IMAGE}}}))
    try:
        chart = find_chart(item.spec.kind, charts)
        text = template(item, chart=chart, namespace=namespace)
    except ToolError as error:
        return [*out, Check("chart", MISSING, str(error), error.fix or "mend the keys that it names")], ""
    return [*out, Check("chart", OK, f"{chart} renders it")], text
