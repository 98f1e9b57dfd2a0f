"""Alerts and dashboard ask for nothing but metrics that a run exports for Prometheus."""

import json
import re
from pathlib import Path

import yaml

from opd.trainer.tracking import GAUGES

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests/cluster/components/monitoring"


def asked() -> set[str]:
    """Every metric that an alert or a panel asks for."""
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    board = json.loads((MONITORING / "runs.json").read_text())
    texts = [rule["expr"] for group in rules for rule in group["rules"]]
    texts += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [variable.get("definition", "") for variable in board["templating"]["list"]]
    return {name for text in texts for name in re.findall(r"\bray_\w+", text)}


def test_alerts_and_dashboard_ask_only_for_gauges_of_ours_and_rays() -> None:
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    assert len(asked()) > 10
    assert asked() <= {f"ray_{name}" for name in (*GAUGES, *METRICS_GAUGES)}


def test_every_series_of_the_runs_is_told_apart_by_namespace_and_run() -> None:
    for group in yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["expr"].count("by (namespace, run)") >= 1
            assert {"summary", "description"} <= rule["annotations"].keys()
