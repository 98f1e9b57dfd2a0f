"""Metrics that a run exports for Prometheus, by a real Ray's exporter; alerts and dashboard ask for nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests/cluster/components/monitoring"
# Ray exports these on nodes with a GPU, which this machine may lack; their names are in its own table.
ON_GPUS = {"ray_node_gpus_utilization", "ray_node_gram_used"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.exported", str(tmp_path_factory.mktemp("exported"))],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONPATH": "src:.", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: float(value) for name, _, value in (word.partition("=") for word in done.stdout.split() if "=" in word)
    }


def asked() -> set[str]:
    """Every metric that an alert or a panel asks for."""
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    board = json.loads((MONITORING / "runs.json").read_text())
    texts = [rule["expr"] for group in rules for rule in group["rules"]]
    texts += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [variable.get("definition", "") for variable in board["templating"]["list"]]
    return {name for text in texts for name in re.findall(r"\bray_\w+", text)}


@pytest.mark.slow
def test_a_run_under_a_real_ray_exports_every_metric_that_alerts_and_dashboard_ask_for(
    exported: dict[str, float],
) -> None:
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    assert len(asked()) > 10
    assert asked() - ON_GPUS <= exported.keys()
    assert {f"ray_{name}" for name in METRICS_GAUGES} >= ON_GPUS
    values = {
        name: exported[f"ray_opd_{name}"]
        for name in ("step", "total_steps", "loss", "score", "skipped_updates", "attempt")
    }
    assert values == {"step": 3, "total_steps": 10, "loss": 0.5, "score": 0.25, "skipped_updates": 2, "attempt": 1}
    assert exported["ray_opd_eta_seconds"] == 14.0
    assert exported["ray_opd_progress_limit_seconds"] == 2400.0, "four floors for a phase that was never seen"


def test_every_series_of_the_runs_is_told_apart_by_namespace_and_run() -> None:
    for group in yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["expr"].count("by (namespace, run)") >= 1
            assert {"summary", "description"} <= rule["annotations"].keys()
