"""Site files: what belongs to a cluster, under every shipped experiment, by helm and by the tool alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.helm import CHARTS, DIGEST, EXPERIMENTS, RUN, SITES, SWEEPS, helm, kind_of

from opd.experiment import SpecError, load_spec
from opd.experiment.reader import read_text
from opdctl.chart.values import load_experiments

# Keys of `cluster` that differ from one cluster to the next, whatever is run on it.
OF_A_CLUSTER = ("image", "secrets", "gpu", "rdma", "queue", "cache", "extraEnv", "podMonitor", "serviceAccount")
PLACEMENT = ("nodeSelector", "tolerations", "affinity", "priorityClassName")


def rendered(kind: str, *files: Path) -> str:
    words = [word for file in files for word in ("-f", str(file))]
    done = helm("template", RUN, str(CHARTS / kind), *words, "--set", f"cluster.image.ref={DIGEST}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_five_platforms_have_a_site_file_that_says_what_was_not_tried() -> None:
    assert set(SITES) == {"eks", "gke", "aks", "openshift", "k3s"}
    for path in SITES.values():
        assert "not tried on" in path.read_text()


@pytest.mark.parametrize("name", [*EXPERIMENTS, *SWEEPS])
def test_a_shipped_experiment_holds_nothing_of_any_cluster(name: str) -> None:
    tree = yaml.safe_load({**EXPERIMENTS, **SWEEPS}[name].read_text())
    cluster = tree.get("cluster", {})
    assert not set(cluster).intersection(OF_A_CLUSTER)
    assert set(tree.get("store", {})) <= {"url"}
    assert tree.get("store", {"url": "build/"})["url"].startswith("build/"), "a folder of the person's own machine"
    assert "storageClass" not in cluster.get("checkpoints", {})
    for group in ("head", "worker", "submitter"):
        assert not set(cluster.get(group, {})).intersection(PLACEMENT)
        assert "cpu" not in cluster.get(group, {}).get("requests", {}), "what the run needs follows from its sizes"


@pytest.mark.parametrize("name", ["opd-qwen3-8b-to-1.7b", "convert"])
def test_two_files_one_file_and_the_tool_render_the_same_objects(name: str, tmp_path: Path) -> None:
    site, file = SITES["gke"], EXPERIMENTS[name]
    [found] = load_experiments(file, site=site, env={})
    one_file = tmp_path / "one.yaml"
    one_file.write_text(json.dumps(found.values))
    two = rendered(kind_of(name), site, file)
    assert rendered(kind_of(name), one_file) == two
    assert rendered(kind_of(name), file, site) == two, "an experiment and a site have no key in common"
    assert "s3://experiments/opd" in two
    assert "endpoint" in two


def test_the_experiment_s_key_wins_over_the_site_s(tmp_path: Path) -> None:
    exp = tmp_path / "exp.yaml"
    tree = read_text(EXPERIMENTS["opd-qwen3-8b-to-1.7b"].read_text(), origin="x").tree
    tree["store"] = {"region": "mine-1"}
    exp.write_text(json.dumps(tree))
    [found] = load_experiments(exp, site=SITES["eks"], env={})
    assert found.spec.store.region == "mine-1"
    assert found.values["cluster"]["gpu"]["type"] == "p5.48xlarge"


@pytest.mark.parametrize("key", ["kind", "model", "name", "trainer"])
@pytest.mark.parametrize("load", [load_experiments, load_spec], ids=["tool", "launcher"])
def test_a_site_file_with_a_key_of_an_experiment_is_refused(load: Callable, key: str, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    values: dict[str, Any] = {"cluster": {}, key: "x"}
    site.write_text(json.dumps(values))
    with pytest.raises(SpecError) as caught:
        load(EXPERIMENTS["quickstart"], site=site, env={})
    assert (caught.value.origin, caught.value.problems[0].path) == (str(site), key)


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_a_start_on_this_machine_reads_a_site_file_as_the_tool_does(site: Path) -> None:
    file = EXPERIMENTS["opd-qwen3-8b-to-1.7b"]
    [found] = load_experiments(file, site=site, env={})
    assert load_spec(file, site=site).spec == found.spec


def test_a_value_of_a_site_file_that_cannot_be_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("store:\n  endpoint: minio:9000\n")
    with pytest.raises(SpecError, match=r"store.endpoint \(.*site.yaml, line 2\)"):
        load_spec(EXPERIMENTS["quickstart"], site=site)
