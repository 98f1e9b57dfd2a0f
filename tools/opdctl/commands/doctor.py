"""`opdctl doctor`: a run's preconditions, a line each, with the fix of what is missing."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from opd.experiment import dump_spec
from opd.redaction import redact
from opd.store.access import StoreAddress, address_of
from opdctl.chart.helm import template
from opdctl.chart.values import Experiment
from opdctl.commands.render import Name, Sets, Site, experiments_of
from opdctl.console import EXIT_FAILURE, EXIT_OK, Context, Namespace, Output, note, print_json
from opdctl.doctor import MISSING, WARNING, Check, check_cluster, checked
from opdctl.kube.client import KubeApi, connect, kubeconfigs
from opdctl.runs.find import open_place, readable

File = Annotated[Path | None, typer.Argument(metavar="EXP.yaml", help="Experiment file.")]


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
    found, apis, texts, checks = list[Experiment](), list[KubeApi](), list[str](), list[Check]()

    def read() -> str:
        assert experiment is not None
        found.extend(experiments_of(experiment, site=site, sets=sets, name=name))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"{experiment}: kind {found[0].spec.kind}, name {found[0].run_id}{more}"

    def reach() -> str:
        api = connect(namespace=namespace, context=context)
        version = api.get("/version")["gitVersion"]
        apis.append(api)
        return f"Kubernetes {version}, namespace {api.namespace}"

    def render() -> str:
        texts.append(template(found[0], namespace=apis[0].namespace if apis else namespace or "default"))
        return f"chart {found[0].spec.kind} renders it"

    if experiment is not None:
        checks.append(checked("spec", read))
    if found and (at := address_of(dump_spec(found[0].spec))) is not None:
        checks.append(check_store(at))
    if namespace is None and context is None and not kubeconfigs():
        note("note: no kubeconfig, so no cluster was looked at (KUBECONFIG, --context)")
    else:
        checks.append(checked("cluster", reach))
    checks += [checked("chart", render)] if found else []
    checks += check_cluster(apis[0], "".join(texts)) if apis else []
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

    def write() -> str:
        place = open_place(at)
        place.check_create_only()
        return f"{place.url}: writable, create-only writes are honoured"

    return checked("store", write)
