"""Doctor's checks of the experiment and of this machine: each looks at one thing, and says what is wrong and how to mend it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from opd.config import SpecError
from opd.config.tree import merge
from opd.errors import StoreError
from opd.store.access import S3_PROTOCOLS, StoreAddress, said_of, under
from opdctl.chart.helm import find_chart, find_helm, template
from opdctl.chart.values import Experiment, load_experiments
from opdctl.errors import ToolError
from opdctl.local import trainer_is_installed
from opdctl.runs.targets import check_url, open_place

HELM_TIMEOUT_S = 20.0
FORWARD = "a server inside the cluster is reached by a forwarded port and AWS_ENDPOINT_URL in this shell"
# Stands in where no image is named, so that the chart's other rules are still tried.
ANY_IMAGE = f"image.invalid/opd@sha256:{'0' * 64}"

State = Literal["ok", "warning", "not checked", "MISSING"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check; `fix` is empty where there is nothing to mend."""

    name: str
    state: State
    message: str
    fix: str = ""


def good(name: str, message: str) -> Check:
    """All is well."""
    return Check(name=name, state="ok", message=message)


def bad(name: str, message: str, fix: str) -> Check:
    """The run would not start, or would wait for ever."""
    return Check(name=name, state="MISSING", message=message, fix=fix)


def warning(name: str, message: str, fix: str) -> Check:
    """It may start, by something that nobody can see from here."""
    return Check(name=name, state="warning", message=message, fix=fix)


def unseen(name: str, message: str, fix: str) -> Check:
    """Nobody looked: the right to do so, or a way from here, is missing."""
    return Check(name=name, state="not checked", message=message, fix=fix)


def check_here(*, runs_here: bool) -> list[Check]:
    """What this machine needs.

    Args:
        runs_here: the experiment is to run on this machine, so the trainer must be installed on it.
    """
    return [check_helm(), *([check_trainer()] if runs_here else [])]


def check_spec(experiment: Path, env: Mapping[str, str], **files: Any) -> tuple[Check, Experiment | None]:
    """Whether the experiment file can be used as it is; of a sweep the first cell stands for all."""
    try:
        found = load_experiments(experiment, env=env, **files)
    except SpecError as error:
        return bad("spec", str(error), "mend the keys named above"), None
    spec = found[0].spec
    rest = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return good("spec", f"{experiment}: kind {spec.kind}, name {spec.name}{rest}"), found[0]


def check_store(at: str | StoreAddress, *, timeout_s: float, is_elsewhere: bool = False) -> Check:
    """Whether the store can be written with these credentials, and can tell which of two attempts was first.

    Writes one throw-away object and deletes it.

    Args:
        is_elsewhere: the run is to be on a cluster, with credentials and ways to the store that this shell may not have.
    """
    try:
        check_url(at.url if isinstance(at, StoreAddress) else at)
        if is_elsewhere and (check := _not_from_here(at)) is not None:
            return check
        place = open_place(at, timeout_s=timeout_s)
        place.check_create_only()
    except ToolError as error:
        return bad("store", str(error), error.fix)
    except StoreError as error:
        fix = f"check the URL, the credentials in the environment and that the bucket exists; {FORWARD}"
        return bad("store", str(error), fix)
    return good("store", f"{place.url}: writable, create-only writes are honoured")


def _not_from_here(at: str | StoreAddress) -> Check | None:
    url, said = at if isinstance(at, StoreAddress) else (at, {})
    scheme = urlsplit(url).scheme
    if scheme in ("", "file"):
        if not isinstance(at, StoreAddress):
            return None
        text = f"store.url is {url}: a folder of the run's own volume, which only its pods see"
        return warning(
            "store", text, "set store.url to a bucket (s3://BUCKET/PREFIX), so that opdctl reads results from anywhere"
        )
    if scheme not in S3_PROTOCOLS:
        return None
    endpoint = said_of("endpoint", under(said, os.environ)) or ""
    if service_of(endpoint) is not None:
        return unseen("store", f"{url} on {endpoint}, a server inside the cluster", FORWARD)
    from botocore.session import Session

    if Session().get_credentials() is None:
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this shell to have it looked at; the run takes its own from a Secret"
        return unseen("store", f"{url}: no credentials for it in this shell", fix)
    return None


def service_of(endpoint: str) -> tuple[str, str] | None:
    """(name, namespace) of the Service of a cluster that an endpoint's host is, the namespace empty for the run's own; None for
    any other host."""
    host = urlsplit(endpoint).hostname or ""
    name, *rest = host.split(".")
    if not host or ":" in host or host == "localhost":
        return None
    if not rest:
        return name, ""
    return (name, rest[0]) if rest[1:2] == ["svc"] else None


def check_helm() -> Check:
    """Whether Helm is there, and which."""
    try:
        command = [find_helm(), "version", "--short"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_TIMEOUT_S, check=True)
    except ToolError as error:
        return bad("helm", str(error), error.fix)
    except (OSError, subprocess.SubprocessError) as error:
        return bad("helm", f"helm does not run: {error}", "install it again")
    return good("helm", f"{command[0]}: {done.stdout.strip()}")


def check_chart(
    item: Experiment, charts: Path | None, *, namespace: str, timeout_s: float, is_elsewhere: bool
) -> tuple[list[Check], str]:
    """Whether the chart takes the experiment; also what it renders, empty where it refuses.

    Without an image everything else is still looked at.
    """
    image = (item.values.get("cluster") or {}).get("image") or {}
    out = []
    if not image.get("ref"):
        fix = "`images/build.sh trainer --push REGISTRY` prints the reference: set cluster.image.ref, or use --image"
        out.append(
            (bad if is_elsewhere else warning)("image", "cluster.image.ref is not set: the chart refuses the file", fix)
        )
        item = replace(item, values=merge(item.values, {"cluster": {"image": {"ref": ANY_IMAGE}}}))
    elif is_elsewhere:
        out.append(good("image", f"{image['ref']}: only the nodes can tell whether it can be pulled"))
    try:
        chart = find_chart(item.spec.kind, charts)
        text = template(item, chart=chart, namespace=namespace, timeout_s=timeout_s)
    except ToolError as error:
        return [*out, bad("chart", str(error), error.fix or "mend the keys that it names")], ""
    return [*out, good("chart", f"{chart} renders it")], text


def check_trainer() -> Check:
    """Whether `opdctl run` could start here."""
    if trainer_is_installed():
        return good("trainer", "installed: `opdctl run` works on this machine")
    return bad(
        "trainer",
        "not installed: the tool alone cannot `opdctl run` here",
        "`make setup`; not needed to render, or to read results",
    )
