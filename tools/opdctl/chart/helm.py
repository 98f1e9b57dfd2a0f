"""Calls Helm: finds it and the charts, passes the values, and turns its errors into one block of text."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdctl.chart.values import Experiment
from opdctl.errors import EXIT_USAGE, ToolError, usage_error

HELM_VARIABLE = "OPDCTL_HELM"
CHARTS_VARIABLE = "OPDCTL_CHARTS"
# Helm says this of the library chart's link at every call.
_NOISE = re.compile(r"^level=(INFO|WARN) .*symbolic link.*\n?", re.MULTILINE)
_PREFIX = re.compile(r"^Error: (execution error at \([^)]*\):\s*)?")


def find_helm() -> str:
    """$OPDCTL_HELM, else `helm` on PATH.

    Raises:
        ToolError: there is neither.
    """
    found = os.environ.get(HELM_VARIABLE) or shutil.which("helm")
    if not found:
        raise ToolError(
            "helm is not on PATH",
            fix=f"install it, or build it with `make helm` and set {HELM_VARIABLE} to what `python3 tools/gotools.py path helm` prints",
        )
    return found


def find_chart(kind: str, charts: Path | None) -> Path:
    """The chart of a kind: below `charts`, $OPDCTL_CHARTS, ./charts, or the checkout that this tool runs from.

    Raises:
        ToolError: none of them holds it.
    """
    chosen = charts or (Path(os.environ[CHARTS_VARIABLE]) if os.environ.get(CHARTS_VARIABLE) else None)
    candidates = [chosen] if chosen else [Path("charts"), Path(__file__).parents[3] / "charts"]
    for folder in candidates:
        if (folder / kind / "Chart.yaml").is_file():
            return folder / kind
    places = " nor ".join(str(folder / kind) for folder in candidates)
    raise usage_error(f"the chart of kind {kind} is not at {places}", fix="name the charts' folder with --charts")


@dataclass(frozen=True, kw_only=True)
class Where:
    """The namespace that Helm works in, and the kubeconfig context (None: the current one)."""

    namespace: str
    context: str | None = None

    @property
    def words(self) -> list[str]:
        context = ["--kube-context", self.context] if self.context else []
        return ["--namespace", self.namespace, *context]


def template(experiment: Experiment, *, chart: Path, namespace: str, timeout_s: float) -> str:
    """The manifests of one experiment, as `helm template` renders them.

    Raises:
        ToolError: the chart refuses the values (exit 2), or Helm did not answer in time.
    """
    command = ["template", experiment.run_id, str(chart), "--namespace", namespace, "--values", "-"]
    done = _helm(command, timeout_s=timeout_s, values=experiment.values)
    if done.returncode:
        raise ToolError(f"chart {chart.name} refuses {experiment.run_id}:\n{_message(done)}", exit_code=EXIT_USAGE)
    return done.stdout


def release_status(name: str, where: Where, *, timeout_s: float) -> str | None:
    """Helm's word for a release (`deployed`, `failed`, `pending-install`, ...), None where there is none."""
    done = _helm(["status", name, *where.words, "--output", "json"], timeout_s=timeout_s)
    if done.returncode == 0:
        return str(json.loads(done.stdout)["info"]["status"])
    if "not found" in done.stderr:
        return None
    raise ToolError(f"helm cannot look up release {name}: {_message(done)}")


def install(experiment: Experiment, *, chart: Path, where: Where, timeout_s: float) -> None:
    """`helm install`.

    Raises:
        ToolError: what the API server refused; a half-made release is taken away again.
    """
    command = ["install", experiment.run_id, str(chart), *where.words, "--values", "-", *_timeout(timeout_s)]
    done = _helm(command, timeout_s=timeout_s, values=experiment.values)
    if done.returncode:
        message = _message(done)
        if "cannot reuse a name" not in message:  # another install was first: it is not ours to take away
            uninstall(experiment.run_id, where, timeout_s=timeout_s)
        raise ToolError(f"helm install {experiment.run_id} failed:\n{message}")


def uninstall(name: str, where: Where, *, timeout_s: float) -> bool:
    """`helm uninstall`; False if there was no such release. What carries `helm.sh/resource-policy: keep` stays."""
    done = _helm(["uninstall", name, *where.words, *_timeout(timeout_s)], timeout_s=timeout_s)
    if done.returncode and "not found" not in done.stderr:
        raise ToolError(f"helm uninstall {name} failed:\n{_message(done)}")
    return done.returncode == 0


def _timeout(timeout_s: float) -> list[str]:
    return ["--timeout", f"{timeout_s:.0f}s"]


def _helm(
    arguments: list[str], *, timeout_s: float, values: Mapping[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        # As JSON, a part of every YAML, so that Helm reads the same scalars as the house's reader.
        return subprocess.run(
            [find_helm(), *arguments],
            input=None if values is None else json.dumps(values),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"helm {arguments[0]} did not answer within {timeout_s:g} s") from error


def _message(done: subprocess.CompletedProcess[str]) -> str:
    text = _PREFIX.sub("", _NOISE.sub("", done.stderr).strip())
    return text.replace("Use --debug flag to render out invalid YAML", "").strip()
