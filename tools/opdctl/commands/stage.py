"""`opdctl stage`: fills a claim from a store URL or the Hugging Face hub, by a Job on the cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from opdctl.commands.render import Image, Site
from opdctl.console import Context, Namespace, deadline
from opdctl.errors import EXIT_FAILURE, ToolError, usage_error

if TYPE_CHECKING:
    from opd.config.cluster.pods import PodSecurity

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="s3://..., or owner/name on the hub.")]
Claim = Annotated[str, typer.Option("--claim", help="The claim to fill.")]
Folder = Annotated[str | None, typer.Option("--folder", help="Folder in it; the source's last name by default.")]
Revision = Annotated[str, typer.Option("--revision", help="Branch, tag or commit of a hub repository.")]
Dataset = Annotated[bool, typer.Option("--dataset", help="The hub repository is a data set.")]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="EXP.yaml",
        help="Take image, secrets, user and the store's server from an experiment, over --site.",
    ),
]
StoreSecret = Annotated[
    str | None, typer.Option("--store-secret", help="Secret whose keys become variables (AWS_...).")
]
HubSecret = Annotated[str | None, typer.Option("--hub-secret", metavar="NAME:KEY", help="Secret with the hub's token.")]
Create = Annotated[
    str | None, typer.Option("--create-claim", metavar="SIZE", help="Make the claim if it is not there.")
]
Ports = Annotated[
    list[int] | None,
    typer.Option(
        "--port",
        help="TCP port the Job may reach, may be repeated; by default 443 and the port of store.endpoint. Of a Service its pods' port counts.",
    ),
]
Local = Annotated[bool, typer.Option("--local-image", help="The image was loaded onto the nodes: never pull it.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not follow the Job.")]
StageTimeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Follow it this long.")]


def stage(
    source: Source,
    claim: Claim,
    folder: Folder = None,
    revision: Revision = "",
    dataset: Dataset = False,
    like: Like = None,
    site: Site = None,
    image: Image = None,
    local_image: Local = False,
    store_secret: StoreSecret = None,
    hub_secret: HubSecret = None,
    create_claim: Create = None,
    port: Ports = None,
    namespace: Namespace = None,
    context: Context = None,
    no_wait: NoWait = False,
    timeout: StageTimeout = 7200.0,
) -> None:
    """Stage a model or data set onto a claim: fetched once, verified; a second time only what has changed.

    Example: `opdctl stage Qwen/Qwen3-1.7B --claim models --revision main --like exp.yaml -n opd`
    """
    from opdctl.kube.client import connect
    from opdctl.stage.job import Staging
    from opdctl.stage.runner import follow, start

    defaults = cluster_of(like, site)
    is_local = local_image or (image is None and defaults.is_local)
    secret = _split(hub_secret) if hub_secret else defaults.hub_secret
    staging = Staging(
        source=source,
        claim=claim,
        folder=_checked(folder if folder is not None else source.rstrip("/").rpartition("/")[2]),
        image=_image(image or defaults.image, is_local=is_local),
        is_local_image=is_local,
        revision=revision,
        is_dataset=dataset,
        store_secret=store_secret or defaults.store_secret,
        hub_secret=secret,
        pull_secrets=defaults.pull_secrets,
        user=defaults.user,
        ports=tuple(port or [443, *defaults.store_ports]),
        variables=defaults.variables,
    )
    with deadline(timeout + 30):
        api = connect(namespace=namespace, context=context)
        is_first = start(api, staging, new_claim_size=create_claim)
        print(
            f"{staging.job_name}  {'started' if is_first else 'is at work already'}: {source} -> {claim}:{staging.folder}"
        )
        if no_wait:
            return
        if not follow(api, staging, timeout_s=timeout):
            raise ToolError(
                f"Job {staging.job_name} failed",
                fix="its log above says why; the same command tries again",
                exit_code=EXIT_FAILURE,
            )
    print(f"{staging.job_name}  done")


_ANY_EXPERIMENT = '{"kind": "opd", "model": {"path": "hub/s"}, "teacher": {"path": "hub/t"}}'


class _Defaults:
    """What experiment and site file say about images, secrets, users, its processes' environment and its store's server."""

    def __init__(self) -> None:
        from opd.config.cluster.pods import PodSecurity

        self.user = _user(PodSecurity(), unset=())
        self.image: str | None = None
        self.is_local = False
        self.store_secret = ""
        self.hub_secret: tuple[str, str] | None = None
        self.pull_secrets: tuple[str, ...] = ()
        self.variables: Mapping[str, str] = {}
        self.store_ports: tuple[int, ...] = ()


def cluster_of(file: Path | None, site: Path | None) -> _Defaults:
    """What an experiment, over its site file, says; of a sweep its first cell. Without an experiment the site file's word."""
    out = _Defaults()
    if file is None and site is None:
        return out
    from opd.config import dump_spec
    from opd.config.cluster import parse_cluster
    from opd.store.access import address_of
    from opdctl.chart.values import load_experiments

    if file is not None:
        loaded = load_experiments(file, site=site, env={})[0]
    else:  # over any experiment: of its own it says nothing about the cluster
        with tempfile.TemporaryDirectory() as folder:
            (any_file := Path(folder, "exp.json")).write_text(_ANY_EXPERIMENT)
            loaded = load_experiments(any_file, site=site, env={})[0]
    cluster = parse_cluster(loaded.values.get("cluster") or {}, loaded.spec.kind)
    hub = cluster.secrets.hugging_face
    out.image, out.is_local = cluster.image.ref, cluster.image.local
    out.store_secret = cluster.secrets.store or ""
    out.hub_secret = (hub.secret, hub.key) if hub is not None else None
    out.pull_secrets = cluster.image.pull_secrets
    out.user = _user(cluster.pod_security, unset=cluster.head.pod_spec.get("unset", ()))
    at = address_of(dump_spec(loaded.spec))
    out.variables = at.variables if at is not None else {}
    if loaded.spec.store.endpoint is not None:
        endpoint = urlsplit(loaded.spec.store.endpoint)
        out.store_ports = (endpoint.port or (443 if endpoint.scheme == "https" else 80),)
    return out


def _user(security: PodSecurity, *, unset: Collection[str]) -> dict[str, int]:
    """`cluster.podSecurity`'s user and groups, as the run's pods, which read what the Job writes, have them: but for what `unset` leaves to the platform."""
    own = {"runAsUser": security.run_as_user, "runAsGroup": security.run_as_group, "fsGroup": security.fs_group}
    return {key: value for key, value in own.items() if f"securityContext.{key}" not in unset}


def _split(text: str) -> tuple[str, str]:
    name, _, key = text.partition(":")
    if not name or not key:
        raise usage_error(f"--hub-secret {text!r}: it names a Secret and its key", fix="write NAME:KEY")
    return name, key


def _checked(folder: str) -> str:
    if folder.startswith("/") or ".." in Path(folder).parts:
        raise usage_error(f"--folder {folder!r}: it lies in the claim", fix="give a relative path without ..")
    return folder


def _image(ref: str | None, *, is_local: bool) -> str:
    """The image, named as the charts demand it of a run's."""
    from opd.config.cluster.run_rules import RUN_RULES
    from opd.config.rule import broken

    if not ref:
        raise usage_error(
            "which image? The Job runs opd.pods.stage in it",
            fix="give --image REF, --site site.yaml, or --like EXP.yaml",
        )
    rules = [rule for rule in RUN_RULES if rule.key == "cluster.image.ref"]
    for problem in broken(rules, {"kind": "opd", "cluster": {"image": {"ref": ref, "local": is_local}}}):
        raise usage_error(f"image {ref!r}: {problem.rule}", fix=f"{problem.fix} (here: --local-image)")
    return ref
