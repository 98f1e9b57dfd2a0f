"""Owns doctor's checks: each looks at one thing that a start needs, and says what is wrong and how to mend it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd.runs.access import StoreAddress, address_of
from opd.runs.errors import StoreError
from opd.spec import SpecError, dump_spec
from opdctl.errors import ToolError
from opdctl.helm import find_chart, find_helm
from opdctl.local import trainer_is_installed
from opdctl.targets import open_place
from opdctl.values import Experiment, load_experiments

HELM_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check; `fix` is empty where all is well."""

    name: str
    is_ok: bool
    message: str
    fix: str = ""


def check_all(
    experiment: Path | None,
    *,
    store: str | None,
    charts: Path | None,
    env: Mapping[str, str],
    timeout_s: float,
    runs_here: bool = True,
    **files: Any,
) -> tuple[list[Check], Experiment | None]:
    """Every check that can be made without a cluster: of the spec, its store, its chart, Helm, and the trainer here.

    Args:
        runs_here: the experiment is to run on this machine, so the trainer must be installed on it.
        files: site, overlays, sets and image, as `load_experiments` takes them.

    Returns:
        The checks, and what the experiment file says, None where it cannot be used.
    """
    out, loaded = [], None
    if experiment is not None:
        check, loaded = check_spec(experiment, env, **files)
        out.append(check)
    spec = loaded.spec if loaded is not None else None
    at = store or (address_of(dump_spec(spec)) if spec is not None else None)
    if at is not None:
        out.append(check_store(at, timeout_s=timeout_s))
    out += [check_helm(), *([check_trainer()] if runs_here else [])]
    if spec is not None:
        out.append(check_chart(spec.kind, charts))
    return out, loaded


def check_spec(experiment: Path, env: Mapping[str, str], **files: Any) -> tuple[Check, Experiment | None]:
    """Whether the experiment file can be used as it is; of a sweep the first cell stands for all."""
    try:
        found = load_experiments(experiment, env=env, **files)
    except SpecError as error:
        return Check(name="spec", is_ok=False, message=str(error), fix="mend the keys named above"), None
    spec = found[0].spec
    rest = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return Check(name="spec", is_ok=True, message=f"{experiment}: kind {spec.kind}, name {spec.name}{rest}"), found[0]


def check_store(at: str | StoreAddress, *, timeout_s: float) -> Check:
    """Whether the store can be written with these credentials, and can tell which of two attempts was first.

    Writes one throw-away object and deletes it.
    """
    try:
        place = open_place(at, timeout_s=timeout_s)
        place.check_create_only()
    except (StoreError, ToolError) as error:
        fix = (
            "check the URL, the credentials in the environment and that the bucket exists; a server inside the cluster is "
            "reached by a forwarded port and AWS_ENDPOINT_URL in this shell"
        )
        return Check(name="store", is_ok=False, message=str(error), fix=fix)
    return Check(name="store", is_ok=True, message=f"{place.url}: writable, create-only writes are honoured")


def check_helm() -> Check:
    """Whether Helm is there, and which."""
    try:
        command = [find_helm(), "version", "--short"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_TIMEOUT_S, check=True)
    except ToolError as error:
        return Check(name="helm", is_ok=False, message=str(error), fix=error.fix)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name="helm", is_ok=False, message=f"helm does not run: {error}", fix="install it again")
    return Check(name="helm", is_ok=True, message=f"{command[0]}: {done.stdout.strip()}")


def check_chart(kind: str, charts: Path | None) -> Check:
    """Whether the chart of the experiment's kind is where the tool looks."""
    try:
        chart = find_chart(kind, charts)
    except ToolError as error:
        return Check(name="chart", is_ok=False, message=str(error), fix=error.fix)
    return Check(name="chart", is_ok=True, message=os.fspath(chart))


def check_trainer() -> Check:
    """Whether `opdctl run` could start here."""
    if trainer_is_installed():
        return Check(name="trainer", is_ok=True, message="installed: `opdctl run` works on this machine")
    return Check(
        name="trainer",
        is_ok=False,
        message="not installed: the tool alone cannot `opdctl run` here",
        fix="`make setup`; not needed to render, or to read results",
    )
