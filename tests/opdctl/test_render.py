"""`opdctl render` and `opdctl run` on the real charts, the real Helm and the real launcher."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.charts.helm import EXPERIMENTS as BY_NAME
from tests.charts.helm import SWEEPS

import gotools
from opdctl.chart.values import load_experiments

pytestmark = pytest.mark.helm

ROOT = Path(__file__).parents[2]
EXPERIMENTS = list(BY_NAME.values())
IMAGE = f"registry.example/opd@sha256:{'a' * 64}"


@pytest.fixture(scope="session")
def helm() -> str:
    return str(gotools.find("helm"))


@pytest.mark.slow
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_render_gives_byte_for_byte_what_helm_gives(file: Path, helm: str, call: Callable) -> None:
    head = yaml.safe_load(file.read_text())
    rendered = call("render", file, "--image", IMAGE, "--charts", ROOT / "charts", OPDCTL_HELM=helm)
    assert rendered.returncode == 0, rendered.stderr
    command = [helm, "template", head["name"], str(ROOT / "charts" / head["kind"]), "-f", str(file)]
    direct = subprocess.run(
        [*command, "--set", f"cluster.image.ref={IMAGE}"], capture_output=True, text=True, check=True
    )
    assert rendered.stdout == direct.stdout


@pytest.mark.slow
def test_a_sweep_renders_one_file_a_cell(helm: str, call: Callable, tmp_path: Path) -> None:
    text = (ROOT / "manifests" / "experiments" / "quickstart.yaml").read_text()
    text = text.replace("seed: 1\n", "matrix: {seed: [3, 4]}\n")
    (tmp_path / "sweep.yaml").write_text(text)
    done = call(
        "render", "sweep.yaml", "--image", IMAGE, "--charts", ROOT / "charts", "--into", "out", OPDCTL_HELM=helm
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["quickstart-seed-3.yaml", "quickstart-seed-4.yaml"]  # fmt: skip
    documents = list(yaml.safe_load_all((tmp_path / "out" / "quickstart-seed-4.yaml").read_text()))
    [config] = [item for item in documents if item["kind"] == "ConfigMap"]
    assert '"seed": 4' in next(iter(config["data"].values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables"),
    [(["--set", "seed=5"], {}), (["--set", "model.path=a"], {}), (["--env"], {"MODEL_PATH": "a"})],
)
def test_a_sweep_whose_key_is_overridden_is_refused_instead_of_run_several_times(
    words: list[str], variables: dict[str, str], call: Callable, tmp_path: Path
) -> None:
    swept = "seed: [1, 2]" if "seed=5" in words else "model.path: [b, c]"
    (tmp_path / "sweep.yaml").write_text(f"kind: opd\nmodel: {{path: m}}\nteacher: {{path: t}}\nmatrix: {{{swept}}}\n")
    done = call("render", "sweep.yaml", "--image", IMAGE, *words, **variables)
    assert done.returncode == 2
    assert "are the same one" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_given_to_a_sweep_is_the_first_part_of_every_cell_s() -> None:
    file = SWEEPS["opd-sweep"]
    for words in ({"env": {"RUN_ID": "mine"}}, {"env": {}, "sets": ["name=mine"]}):
        names = [item.run_id for item in load_experiments(file, **words)]
        assert len(set(names)) == 6
        assert all(name.startswith("mine-loss-type-") for name in names)


@pytest.mark.slow
def test_what_the_chart_refuses_is_exit_2_with_its_own_words(helm: str, call: Callable) -> None:
    done = call("render", EXPERIMENTS[0], "--charts", ROOT / "charts", OPDCTL_HELM=helm)
    assert done.returncode == 2
    assert "the image is required and has no default" in done.stderr
    assert "Traceback" not in done.stderr
