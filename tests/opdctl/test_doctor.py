"""`opdctl doctor` says what is missing and how to mend it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.charts.helm import DIGEST

from gotools import find
from opd.store.access import StoreAddress
from opdctl.commands.doctor import check_store

pytestmark = pytest.mark.helm

ROOT = Path(__file__).parents[2]
IMAGE = ("--set", f"cluster.image.ref={DIGEST}")
EXPERIMENT = ROOT / "manifests" / "experiments" / "quickstart.yaml"


def helm() -> dict[str, str]:
    return {"OPDCTL_HELM": str(find("helm"))}


def test_what_is_there_is_reported_as_ok(inside: Callable) -> None:
    done = inside("doctor", EXPERIMENT, *IMAGE, **helm())
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ok ")] == ["spec", "chart"]
    assert "MISSING" not in done.stdout
    assert "no kubeconfig" in done.stderr


def test_a_store_that_can_be_written_is_ok_and_a_folder_of_the_run_s_volume_a_warning(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = StoreAddress(str(store), {})
    assert check_store(at).state == "warning"
    monkeypatch.setattr("opdctl.commands.doctor.readable", lambda found: found)
    assert check_store(at).state == "ok"
    assert [path.name for path in store.iterdir()] == [".probe"]


def test_without_a_cluster_nothing_is_ok_that_the_chart_refuses(inside: Callable, tmp_path: Path) -> None:
    words = ("doctor", EXPERIMENT)
    done = inside(*words, **helm())
    assert done.returncode == 1
    assert "cluster.image.ref" in done.stdout.partition("MISSING     chart ")[2]
    (tmp_path / "more.yaml").write_text("cluster: {queue: {manager: kueue, name: team}}")
    words = (*words, *IMAGE, "--site", "more.yaml")
    done = inside(*words, **helm())
    assert done.returncode == 1
    assert "MISSING     spec" in done.stdout
    assert "cluster.lifecycle" in done.stdout
    assert "ok          chart" not in done.stdout
    done = inside(*words, "--set", "cluster.lifecycle=suspendable", **helm())
    assert "ok          chart" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "name", "words"),
    [
        (("--set", "store.url=ftp://host/x"), {}, "spec", "PROTOCOL://BUCKET/PREFIX"),
        ((), {"OPDCTL_HELM": "/nowhere/helm"}, "chart", "helm does not run"),
    ],
)
def test_what_is_missing_is_exit_1_with_a_way_to_mend_it(
    inside: Callable, arguments: tuple, environment: dict, name: str, words: str
) -> None:
    done = inside("doctor", EXPERIMENT, *arguments, **{**helm(), **environment})
    assert done.returncode == 1
    assert words in done.stdout.partition(f"MISSING     {name} ")[2]
