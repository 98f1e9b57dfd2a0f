"""A chart installs from a fresh clone and from its package, without building dependencies."""

import os
import subprocess
from importlib.metadata import version

import pytest
import yaml
from tests.charts.helm import CHARTS, EXAMPLE_OF, EXPERIMENTS, IMAGE, ROOT, env_of, head, helm, parsed, rayjob, template

from opd.config import FILE_KINDS

SET_IMAGE = ("--set", f"cluster.image.ref={IMAGE['cluster']['image']['ref']}")


def rendered(chart, kind):
    done = helm(
        "template", "my-run", str(chart), "--namespace", "opd", "-f", str(EXPERIMENTS[EXAMPLE_OF[kind]]), *SET_IMAGE
    )
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What git would check out of the index: the working tree's charts, and only what is tracked of them."""
    folder = tmp_path_factory.mktemp("clone")
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={folder}/"], cwd=ROOT, check=True, timeout=60)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_chart_installs_from_a_fresh_clone(clone, kind):
    assert (clone / "charts" / kind / "charts/opd-lib/Chart.yaml").is_file()
    assert rendered(clone / "charts" / kind, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_package_renders_the_very_same_objects(tmp_path, kind):
    done = helm("package", str(CHARTS / kind), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("*.tgz")
    assert rendered(package, kind) == parsed(template(kind, IMAGE).stdout)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_library_lies_in_every_chart_and_is_declared_with_its_version(kind):
    link = CHARTS / kind / "charts/opd-lib"
    assert os.readlink(link) == "../../opd-lib"
    library = yaml.safe_load((CHARTS / "opd-lib/Chart.yaml").read_text())
    chart = yaml.safe_load((CHARTS / kind / "Chart.yaml").read_text())
    assert chart["dependencies"] == [
        {"name": library["name"], "version": library["version"], "repository": "file://../opd-lib"}
    ]
    assert (chart["name"], chart["version"]) == (kind, library["version"])


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_chart_tells_the_image_its_version_which_is_that_of_the_package(kind):
    told = env_of(head(rayjob(kind)))["OPD_CHART_VERSION"]
    assert told == yaml.safe_load((CHARTS / kind / "Chart.yaml").read_text())["version"] == version("opd")


def test_a_run_knows_the_image_that_it_runs_in():
    container = head(rayjob("opd"))
    assert env_of(container)["OPD_IMAGE"] == container["image"]


def test_all_charts_have_the_same_thin_templates():
    contents = {
        kind: {path.name: path.read_text() for path in (CHARTS / kind / "templates").rglob("*") if path.is_file()}
        for kind in FILE_KINDS
    }
    assert all(files == contents["opd"] for files in contents.values())
    assert all(text.count("\n") == 1 and "{{- include" in text for text in contents["opd"].values())
