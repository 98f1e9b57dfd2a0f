"""The scenario agent-database as far as it goes without a cluster: its charts rendered, its run on this machine, its promises."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.helm import IMAGE, helm
from tests.e2e.promises.agent_database import EXPECTED, TRAJECTORIES, asked_its_case, scored_by_its_case
from tests.e2e.promises.common import OVERRIDES
from tests.e2e.scenarios.agent_database import EXPERIMENT, LAYERS, make_inputs, volumes
from tests.e2e.scenarios.scene import ROOT

from opd.agent.trajectories import file_key
from opd_envs.preparing import TRAIN_FILE, val_file


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def merged(*trees: dict[str, Any]) -> dict[str, Any]:
    """Layers of values, the last winning."""
    out: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            both = isinstance(out.get(key), dict) and isinstance(value, dict)
            out[key] = merged(out[key], value) if both else value
    return out


@pytest.mark.helm
@pytest.mark.parametrize("name", ["from-claim", "from-store"])
def test_the_charts_take_the_scenario_and_mount_the_database_read_only(tmp_path, inputs, name):
    extra = tmp_path / "extra.yaml"
    extra.write_text(yaml.safe_dump(merged(inputs.script(), IMAGE), allow_unicode=True))
    files = [EXPERIMENT, OVERRIDES / "common.yaml", *LAYERS, extra]
    words = [word for file in files for word in ("-f", str(file))]
    words += [word for item in volumes(inputs)[name] for word in ("--set", item)]
    done = helm("template", name, str(ROOT / "charts" / "opd-agent"), *words)
    assert done.returncode == 0, done.stderr
    (job,) = (tree for tree in yaml.safe_load_all(done.stdout) if tree and tree["kind"] == "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
        pod = group["template"]["spec"]
        (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "tool-database")
        assert (mount["mountPath"], mount["readOnly"]) == ("/databases/deepplanning", True)
        assert [one["name"] for one in pod.get("initContainers", [])].count("fetch-tool-database") == (
            name == "from-store"
        )


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_the_scenarios_run_keeps_its_promises_on_this_machine(tmp_path, inputs):
    here = {
        "agent": {"database_dir": str(inputs.database)},
        "data": {"train": [str(inputs.rows / TRAIN_FILE)], "val": [str(inputs.rows / val_file("en"))]},
        "store": {"url": str(tmp_path / "store")}, "output": {"root": str(tmp_path / "out")}, "name": "local",
    }  # fmt: skip
    layers = [yaml.safe_load(path.read_text()) for path in (EXPERIMENT, *LAYERS)]
    spec = merged(*layers, inputs.script(), here)
    spec.pop("cluster")
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(spec, allow_unicode=True))
    words = [sys.executable, "-m", "opd.launch", "exp.yaml", "--no-env"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    (evidence / EXPECTED).write_text(json.dumps(inputs.expected))
    kept = Path(tmp_path / "store" / "local" / file_key("train", 1)).read_bytes()
    (evidence / f"here.{TRAJECTORIES}").write_bytes(kept)
    for promise in (asked_its_case("here"), scored_by_its_case("here")):
        is_kept, observed = promise(evidence)
        assert is_kept, observed
    assert len(inputs.expected["cases"]) > 1
