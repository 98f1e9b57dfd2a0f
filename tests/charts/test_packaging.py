"""A chart installs from a fresh clone and from its package, without building dependencies."""

import os
import subprocess
from importlib.metadata import version

import pytest
import yaml
from tests.charts.helm import CHARTS, EXAMPLE_OF, EXPERIMENTS, IMAGE, ROOT, helm, parsed, template

from opd.experiment import FILE_KINDS

SET_IMAGE = ("--set", f"cluster.image.ref={IMAGE['cluster']['image']['ref']}")


def rendered(chart, kind):
    file = str(EXPERIMENTS[EXAMPLE_OF[kind]])
    done = helm("template", "my-run", str(chart), "--namespace", "opd", "-f", file, *SET_IMAGE)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Check the index out: the tracked files of the working tree's charts."""
    folder = tmp_path_factory.mktemp("clone")
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={folder}/"], cwd=ROOT, check=True, timeout=60)
    return folder


@pytest.mark.parametrize("kind", ["opd", "convert"])
def test_a_chart_installs_from_a_fresh_clone(clone, kind):
    assert rendered(clone / "charts" / kind, kind)


@pytest.mark.parametrize("kind", ["opd", "pipeline"])
def test_a_package_renders_the_very_same_objects(tmp_path, kind):
    done = helm("package", str(CHARTS / kind), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("*.tgz")
    assert rendered(package, kind) == parsed(template(kind, IMAGE).stdout)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_chart_is_its_name_and_links_to_what_all_charts_share(kind):
    links = {path.name: os.readlink(path) for path in (CHARTS / kind).iterdir() if path.is_symlink()}
    assert links == {name: f"../opd-lib/{name}" for name in ("templates", "values.yaml", "values.schema.json")}
    chart = yaml.safe_load((CHARTS / kind / "Chart.yaml").read_text())
    assert (chart["name"], chart["version"]) == (kind, version("opd"))
