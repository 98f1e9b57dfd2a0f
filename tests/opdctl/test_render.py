"""`opdctl render` and `opdctl run` on the real charts, the real Helm and the real launcher."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import gotools

pytestmark = pytest.mark.helm

ROOT = Path(__file__).parents[2]
IMAGE = f"registry.example/opd@sha256:{'a' * 64}"


@pytest.fixture(scope="session")
def helm() -> str:
    return str(gotools.find("helm"))


@pytest.mark.slow
def test_a_sweep_renders_one_file_a_cell(helm: str, inside: Callable, tmp_path: Path) -> None:
    text = (ROOT / "manifests" / "experiments" / "quickstart.yaml").read_text()
    text = text.replace("seed: 1\n", "matrix: {seed: [3, 4]}\n")
    (tmp_path / "sweep.yaml").write_text(text)
    done = inside("render", "sweep.yaml", "--set", f"cluster.image.ref={IMAGE}", "--into", "out", OPDCTL_HELM=helm)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["quickstart-seed-3.yaml", "quickstart-seed-4.yaml"]  # fmt: skip
    documents = list(yaml.safe_load_all((tmp_path / "out" / "quickstart-seed-4.yaml").read_text()))
    [config] = [item for item in documents if item["kind"] == "ConfigMap"]
    assert '"seed": 4' in next(iter(config["data"].values()))
