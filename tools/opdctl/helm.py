"""Owns calling Helm: where it and the charts are, what it is given, and its errors as one clear block."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from opdctl.errors import EXIT_USAGE, ToolError, usage_error
from opdctl.values import Experiment

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
        raise ToolError("helm is not on PATH", fix=f"install it (`make tools` builds it) or set {HELM_VARIABLE}")
    return found


def find_chart(kind: str, charts: Path | None) -> Path:
    """The chart of a kind: below `charts`, $OPDCTL_CHARTS, ./charts, or the checkout that this tool runs from.

    Raises:
        ToolError: none of them holds it.
    """
    chosen = charts or (Path(os.environ[CHARTS_VARIABLE]) if os.environ.get(CHARTS_VARIABLE) else None)
    candidates = [chosen] if chosen else [Path("charts"), Path(__file__).parents[2] / "charts"]
    for folder in candidates:
        if (folder / kind / "Chart.yaml").is_file():
            return folder / kind
    places = " nor ".join(str(folder / kind) for folder in candidates)
    raise usage_error(f"the chart of kind {kind} is not at {places}", fix="name the charts' folder with --charts")


def template(experiment: Experiment, *, chart: Path, namespace: str, timeout_s: float) -> str:
    """The manifests of one experiment, as `helm template` renders them.

    Raises:
        ToolError: the chart refuses the values (exit 2), or Helm did not answer in time.
    """
    command = [find_helm(), "template", experiment.run_id, str(chart), "--namespace", namespace, "--values", "-"]
    try:
        # As JSON, a part of every YAML, so that Helm reads the same scalars as the house's reader.
        done = subprocess.run(
            command,
            input=json.dumps(experiment.values),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"helm did not answer within {timeout_s:g} s") from error
    if done.returncode:
        message = _PREFIX.sub("", _NOISE.sub("", done.stderr).strip()).replace("Use --debug flag to render out invalid YAML", "")  # fmt: skip
        raise ToolError(f"chart {chart.name} refuses {experiment.run_id}:\n{message.strip()}", exit_code=EXIT_USAGE)
    return done.stdout
