"""Site files: what belongs to a cluster, under every shipped experiment, by helm and by the tool alike."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.charts.helm import CHARTS, DIGEST, EXPERIMENTS, RUN, SITES, SWEEPS, helm, kind_of

from opd.experiment import SpecError, load_spec
from opdctl.chart.values import load_experiments

# Keys of `cluster` that differ from one cluster to the next, for every run.
OF_A_CLUSTER = ("image", "secrets", "gpu", "rdma", "queue", "cache", "extraEnv", "serviceAccount")
PLACEMENT = ("nodeSelector", "tolerations", "affinity", "priorityClassName")


def rendered(kind: str, *files: Path) -> str:
    words = [word for file in files for word in ("-f", str(file))]
    done = helm("template", RUN, str(CHARTS / kind), *words, "--set", f"cluster.image.ref={DIGEST}")
    assert done.returncode == 0, done.stderr
    return done.stdout


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


@pytest.mark.parametrize("load", [load_experiments, load_spec], ids=["tool", "launcher"])
def test_a_site_file_with_a_key_of_an_experiment_is_refused(load: Callable, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text('{"cluster": {}, "trainer": {}}')
    with pytest.raises(SpecError) as caught:
        load(EXPERIMENTS["quickstart"], site=site, env={})
    assert (caught.value.origin, caught.value.problems[0].path) == (str(site), "trainer")
