"""Checks of the experiment, its store and this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opd.config import SpecError
from opd.config.tree import merge
from opd.errors import StoreError
from opd.store.access import S3_PROTOCOLS, StoreAddress, said_of, under
from opdctl.chart.helm import find_chart, find_helm, template
from opdctl.chart.values import Experiment, load_experiments
from opdctl.doctor.check import Check, bad, good, unseen, warning
from opdctl.errors import ToolError
from opdctl.runs.places import check_url, open_place

HELM_TIMEOUT_S = 20.0
FORWARD = "a server inside the cluster is reached by a forwarded port and AWS_ENDPOINT_URL in this shell"
# Replaces an image that the file does not name, so that the chart's other rules are tried.
ANY_IMAGE = f"image.invalid/opd@sha256:{'0' * 64}"


def check_spec(experiment: Path, env: Mapping[str, str], **files: Any) -> tuple[Check, Experiment | None]:
    """Check the experiment file; the first cell represents a sweep."""
    try:
        found = load_experiments(experiment, env=env, **files)
    except SpecError as error:
        return bad("spec", str(error), "mend the keys named above"), None
    spec = found[0].spec
    rest = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return good("spec", f"{experiment}: kind {spec.kind}, name {spec.name}{rest}"), found[0]


def check_store(at: str | StoreAddress, *, timeout_s: float) -> Check:
    """Check that the store can be written from here, and that it decides which of two attempts was first.

    It writes one object and deletes it.
    """
    try:
        check_url(at.url if isinstance(at, StoreAddress) else at)
        if (check := _not_from_here(at)) is not None:
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
        return warning("store", text, "set store.url to a bucket (s3://BUCKET/PREFIX), to read results from anywhere")
    if scheme not in S3_PROTOCOLS:
        return None
    endpoint = said_of("endpoint", under(said, os.environ)) or ""
    if _is_service(endpoint):
        return unseen("store", f"{url} on {endpoint}, a server inside the cluster", FORWARD)
    from botocore.session import Session

    if Session().get_credentials() is None:
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this shell; the run takes its own from a Secret"
        return unseen("store", f"{url}: no credentials for it in this shell", fix)
    return None


def _is_service(endpoint: str) -> bool:
    """Return whether an endpoint's host is a Service of a cluster."""
    host = urlsplit(endpoint).hostname or ""
    _, *rest = host.split(".")
    return bool(host) and ":" not in host and host != "localhost" and (not rest or rest[1:2] == ["svc"])


def check_helm() -> Check:
    """Check that Helm runs."""
    try:
        command = [find_helm(), "version", "--short"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_TIMEOUT_S, check=True)
    except ToolError as error:
        return bad("helm", str(error), error.fix)
    except (OSError, subprocess.SubprocessError) as error:
        return bad("helm", f"helm does not run: {error}", "install it again")
    return good("helm", f"{command[0]}: {done.stdout.strip()}")


def check_chart(item: Experiment, charts: Path | None, *, namespace: str, timeout_s: float) -> tuple[list[Check], str]:
    """Check image reference and chart; return the rendered text, too, empty where the chart rejects the file."""
    image = (item.values.get("cluster") or {}).get("image") or {}
    if image.get("ref"):
        out = [good("image", f"{image['ref']}: only the nodes can try to pull it")]
    else:
        fix = "`images/build.sh trainer --push REGISTRY` prints the reference: set cluster.image.ref, or use --image"
        out = [bad("image", "cluster.image.ref is not set: the chart rejects the file", fix)]
        item = replace(item, values=merge(item.values, {"cluster": {"image": {"ref": ANY_IMAGE}}}))
    try:
        chart = find_chart(item.spec.kind, charts)
        text = template(item, chart=chart, namespace=namespace, timeout_s=timeout_s)
    except ToolError as error:
        return [*out, bad("chart", str(error), error.fix or "mend the keys that it names")], ""
    return [*out, good("chart", f"{chart} renders it")], text
