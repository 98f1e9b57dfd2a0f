"""`opdctl doctor` says what is missing and how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.charts.helm import DIGEST

from gotools import find

pytestmark = pytest.mark.helm

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "manifests" / "experiments" / "quickstart.yaml"


def helm() -> dict[str, str]:
    return {"OPDCTL_HELM": str(find("helm"))}


def test_what_is_there_is_reported_as_ok(inside: Callable, store: Path) -> None:
    done = inside("doctor", EXPERIMENT, "--store", store, "--charts", ROOT / "charts", "--image", DIGEST, **helm())
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["ok", name] for name in ("spec", "store", "image", "chart")
    ]
    assert [path.name for path in store.iterdir()] == [".probe"]
    assert "no kubeconfig" in done.stderr


def test_without_a_cluster_nothing_is_ok_that_the_chart_refuses(inside: Callable, tmp_path: Path) -> None:
    words = ("doctor", EXPERIMENT, "--no-cluster", "--charts", ROOT / "charts")
    done = inside(*words, **helm())
    assert done.returncode == 1
    assert "MISSING     image     cluster.image.ref is not set: the chart rejects the file" in done.stdout
    (tmp_path / "more.yaml").write_text("cluster: {queue: {manager: kueue, name: team}}")
    done = inside(*words, "--image", DIGEST, "-f", "more.yaml", **helm())
    assert done.returncode == 1
    assert "MISSING     spec" in done.stdout
    assert "cluster.lifecycle" in done.stdout
    assert "ok          chart" not in done.stdout
    (tmp_path / "rest.yaml").write_text("cluster: {lifecycle: suspendable}")
    done = inside(*words, "--image", DIGEST, "-f", "more.yaml", "-f", "rest.yaml", **helm())
    assert "ok          chart" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "name", "words"),
    [
        (("--store", "ftp://host/x"), {}, "store", "PROTOCOL://BUCKET/PREFIX"),
        (("--store", "{tmp}/file"), {}, "store", "check that the folder exists"),
        (("--charts", "{tmp}"), {}, "chart", "--charts"),
        ((), {"OPDCTL_HELM": "/nowhere/helm"}, "chart", "helm does not run"),
    ],
)
def test_what_is_missing_is_exit_1_with_a_way_to_mend_it(
    inside: Callable, tmp_path: Path, arguments: tuple, environment: dict, name: str, words: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    done = inside("doctor", EXPERIMENT, *(text.format(tmp=tmp_path) for text in arguments), **{**helm(), **environment})
    assert done.returncode == 1
    assert words in done.stdout.partition(f"MISSING     {name} ")[2]
