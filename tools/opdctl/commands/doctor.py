"""`opdctl doctor`: a run's preconditions, a line each, with the fix of what is missing."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from opd.errors import StoreError, StoreUnavailable
from opd.experiment import dump_spec
from opd.experiment.tree import merge
from opd.redaction import redact
from opd.store.access import StoreAddress, address_of
from opdctl.chart.helm import find_chart, template
from opdctl.chart.values import Experiment
from opdctl.commands.render import Name, Sets, Site, experiments_of
from opdctl.console import EXIT_FAILURE, EXIT_OK, Context, Namespace, Output, ToolError, note, print_json
from opdctl.doctor import MISSING, OK, UNSEEN, WARNING, Check, check_cluster, checked
from opdctl.kube.client import ClusterError, connect, is_configured
from opdctl.runs.find import open_place, readable

File = Annotated[Path | None, typer.Argument(metavar="EXP.yaml", help="Experiment file.")]
FORWARD = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this shell; a server inside the cluster is reached by a forwarded "
    "port and AWS_ENDPOINT_URL"
)
# Replaces an image that the file does not name, so that the chart's other rules are tried.
ANY_IMAGE = f"image.invalid/opd@sha256:{'0' * 64}"


def doctor(
    experiment: File = None,
    site: Site = None,
    sets: Sets = None,
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = "table",
) -> None:
    """Check a run's preconditions; exit 1 if anything is MISSING.

    Example: `opdctl doctor exp.yaml --site site.yaml -n opd`
    """
    api, checks, in_cluster, found = None, list[Check](), list[Check](), list[Experiment]()
    if namespace is None and context is None and not is_configured():
        note("note: no kubeconfig, so no cluster was looked at (KUBECONFIG, --context)")
    else:
        try:
            api = connect(namespace=namespace, context=context)
        except ClusterError as error:
            in_cluster = [Check("cluster", MISSING, str(error), error.fix)]

    def read(file: Path) -> str:
        found.extend(experiments_of(file, site=site, sets=sets, name=name))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"{file}: kind {found[0].spec.kind}, name {found[0].run_id}{more}"

    if experiment is not None:
        checks.append(checked("spec", partial(read, experiment)))
    item, text = found[0] if found else None, ""
    if item is not None:
        if (at := address_of(dump_spec(item.spec))) is not None:
            checks.append(check_store(at))
        of_chart, text = _check_chart(item, namespace=api.namespace if api else namespace or "default")
        checks += of_chart
    checks += check_cluster(api, text) if api is not None else in_cluster
    if output == "json":
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            print(redact(f"{check.state:11s} {check.name:9s} {check.message}"))
            if check.fix:
                print(redact(f"{'':22s}fix: {check.fix}"))
    raise typer.Exit(EXIT_FAILURE if any(check.state == MISSING for check in checks) else EXIT_OK)


def check_store(at: StoreAddress) -> Check:
    """Check that the store can be written from here, and that it decides which of two attempts was first.

    It writes one small object, which stays. A run's own credentials and network may reach a store that this shell cannot.
    """
    if readable(at) is None:
        text = f"store.url is {at.url}: a folder of the run's own volume, which only its pods see"
        fix = "set store.url to a bucket (s3://BUCKET/PREFIX), to read results from anywhere"
        return Check("store", WARNING, text, fix)
    try:
        place = open_place(at)
        place.check_create_only()
    except ToolError as error:
        return Check("store", MISSING, str(error), error.fix)
    except StoreError as error:
        if isinstance(error, StoreUnavailable) or "credentials" in str(error):
            return Check("store", UNSEEN, f"not from this shell: {error}", FORWARD)
        fix = "check the URL, the credentials in the environment and that the bucket exists"
        return Check("store", MISSING, str(error), fix)
    return Check("store", OK, f"{place.url}: writable, create-only writes are honoured")


def _check_chart(item: Experiment, *, namespace: str) -> tuple[list[Check], str]:
    """Check image reference and chart; return the rendered text, too, empty where the chart rejects the file."""
    text, ref = "", ((item.values.get("cluster") or {}).get("image") or {}).get("ref")
    image = Check("image", OK, f"{ref}: only the nodes can try to pull it")
    if not ref:
        fix = "`images/build.sh trainer --push REGISTRY` prints the reference for cluster.image.ref"
        image = Check("image", MISSING, "cluster.image.ref is not set: the chart rejects the file", fix)
        item = replace(item, values=merge(item.values, {"cluster": {"image": {"ref": ANY_IMAGE}}}))

    def render() -> str:
        nonlocal text
        chart = find_chart(item.spec.kind)
        text = template(item, chart=chart, namespace=namespace)
        return f"{chart} renders it"

    return [image, checked("chart", render)], text
