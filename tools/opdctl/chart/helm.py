"""Helm: the program and the charts, calls with an experiment's values, errors as one block of text."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opdctl.chart.values import Experiment
from opdctl.console import ToolError, usage_error
from opdctl.kube.client import KubeApi

HELM_VARIABLE = "OPDCTL_HELM"
TIMEOUT_S = 300.0
# A node without the image pulls it for the chart's pre-install check: as long as the check's own deadline.
CHECK_S = 1800.0
# Helm's remark on the library chart's link, at every call.
_NOISE = re.compile(r"^level=(INFO|WARN) .*symbolic link.*\n?", re.MULTILINE)
_PREFIX = re.compile(r"^Error: (execution error at \([^)]*\):\s*)?")


def find_helm() -> str:
    """Return $OPDCTL_HELM, else `helm` on PATH."""
    found = os.environ.get(HELM_VARIABLE) or shutil.which("helm")
    if not found:
        raise ToolError(
            "helm is not on PATH",
            fix=f"install it, or build it with `make helm` and set {HELM_VARIABLE} to `python3 tools/gotools.py path helm`",
        )
    return found


def find_chart(kind: str) -> Path:
    """Return the chart of a kind: below ./charts, or this checkout's or this wheel's charts."""
    own = Path(__file__).parents[1]
    candidates = [Path("charts"), own.parents[1] / "charts", own / "charts"]
    for folder in candidates:
        if (folder / kind / "Chart.yaml").is_file():
            return folder / kind
    places = " nor ".join(str(folder / kind) for folder in candidates)
    raise usage_error(f"the chart of kind {kind} is not at {places}", fix="call opdctl in a checkout of the project")


def _where(api: KubeApi) -> list[str]:
    return ["--namespace", api.namespace, *(["--kube-context", api.context] if api.context else [])]


def template(experiment: Experiment, *, namespace: str) -> str:
    """Return the manifests of one experiment, as `helm template` renders them."""
    kind = experiment.spec.kind
    command = ["template", experiment.run_id, str(find_chart(kind)), "--namespace", namespace, "--values", "-"]
    done = _helm(command, values=experiment.values)
    if done.returncode:
        text = f"chart {kind} rejects {experiment.run_id}:\n{_message(done)}"
        raise usage_error(text, fix="mend the keys that it names")
    return done.stdout


def release_status(name: str, api: KubeApi) -> str | None:
    """Return Helm's word for a release (`deployed`, `failed`, `pending-install`, ...); None without a release."""
    done = _helm(["status", name, *_where(api), "--output", "json"])
    if done.returncode == 0:
        return str(json.loads(done.stdout)["info"]["status"])
    if "not found" in done.stderr:
        return None
    raise ToolError(f"helm cannot look up release {name}: {_message(done)}")


def install(experiment: Experiment, api: KubeApi) -> None:
    """Run `helm install`; remove a half-made release."""
    chart = str(find_chart(experiment.spec.kind))
    words = ["install", experiment.run_id, chart, *_where(api), "--values", "-", "--timeout", f"{CHECK_S:.0f}s"]
    done = _helm(words, timeout_s=CHECK_S, values=experiment.values)
    if done.returncode:
        message = _message(done)
        if "cannot reuse a name" not in message:  # the release is another installation's
            uninstall(experiment.run_id, api)
        raise ToolError(f"helm install {experiment.run_id} failed:\n{message}")


def uninstall(name: str, api: KubeApi) -> bool:
    """Run `helm uninstall`; return False without such a release. Objects with `helm.sh/resource-policy: keep` stay."""
    done = _helm(["uninstall", name, *_where(api)])
    if done.returncode and "not found" not in done.stderr:
        raise ToolError(f"helm uninstall {name} failed:\n{_message(done)}")
    return done.returncode == 0


def _helm(
    arguments: list[str], *, timeout_s: float = TIMEOUT_S, values: Mapping[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        # JSON is a part of every YAML: Helm reads the same scalars as our reader.
        text = None if values is None else json.dumps(values)
        command = [find_helm(), *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"helm {arguments[0]} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ToolError(f"helm does not run: {error}", fix=f"install it again, or correct ${HELM_VARIABLE}") from error


def _message(done: subprocess.CompletedProcess[str]) -> str:
    text = _PREFIX.sub("", _NOISE.sub("", done.stderr).strip())
    return text.replace("Use --debug flag to render out invalid YAML", "").strip()
