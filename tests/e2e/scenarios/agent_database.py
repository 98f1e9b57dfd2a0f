"""opd-agent over an imported database in DeepPlanning's layout: on a claim that a Job fills, and as an archive of the store."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import yaml
from tests.e2e.cluster.services import BUCKET, S3_SECRET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.agent_database import EXPECTED, STAGED, TRAJECTORIES
from tests.e2e.promises.common import override
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import PREFIX, ROOT, Scene
from tests.gpu_smoke import planner

from opd.agent.trajectories import file_key
from opd.config.verl import hydra_value
from opd_envs.preparing import TRAIN_FILE, val_file

EXPERIMENT = EXPERIMENTS / "opd-agent-quickstart.yaml"
LAYERS = (OVERRIDES / "worker.yaml", OVERRIDES / "agent-database.yaml")
CASES = ("10", "42", "57", "63")
SCRIPT = "++actor_rollout_ref.rollout.engine_kwargs.cpu.script.assistant"
"""`assistant` stands in every prompt: all conversations have the one script."""
_CLAIM, _FOLDER = "tool-database", "deepplanning"
_INPUTS = f"{BUCKET}/inputs/{_FOLDER}"
_ARCHIVE = "deepplanning.tar.gz"
_STAGE, _STAGE_LABEL = ROOT / "manifests/stage.yaml", "opd/stage"


class Inputs(NamedTuple):
    """What the runs are given, on this machine.

    Attributes:
        database: the imported folder. archive: the same, packed. rows: folder of the prepared rows.
        expected: `cases` of the training rows, and `right`: the one whose price the script tells.
    """

    database: Path
    archive: Path
    rows: Path
    expected: Mapping[str, Any]

    def script(self) -> dict[str, Any]:
        """A layer of values: every conversation asks for the hotels, then tells the plan that is right for one case."""
        turns = [planner.call("en"), planner.report("en", int(f"30{self.expected['right']}"))]
        return {"overrides": [f"{SCRIPT}={hydra_value(turns)}"]}


def make_inputs(folder: Path) -> Inputs:
    """Archives as published, with invented entries; imported, packed, prepared."""
    archive = folder / _ARCHIVE
    planner.write_world(folder, cases=CASES, languages=("en",), archive=archive)
    rows = folder / planner.ROWS
    cases = sorted(
        row["extra_info"]["case_id"].rpartition("/")[2] for row in pq.read_table(rows / TRAIN_FILE).to_pylist()
    )
    return Inputs(folder / planner.DATABASE, archive, rows, {"cases": cases, "right": cases[0]})


def volumes(inputs: Inputs) -> dict[str, tuple[str, ...]]:
    """How each run gets the database, as `--set` words by the run's name."""
    sha256 = hashlib.sha256(inputs.archive.read_bytes()).hexdigest()
    return {
        "from-claim": (f"cluster.toolDatabase.claim={_CLAIM}", f"cluster.toolDatabase.subPath={_FOLDER}"),
        "from-store": (
            f"cluster.toolDatabase.url=s3://{_INPUTS}/{_ARCHIVE}",
            f"cluster.toolDatabase.sha256={sha256}",
        ),
    }


def play(scene: Scene) -> None:
    """Gather the evidence of both runs, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        inputs = make_inputs(Path(name))
        scene.evidence.tree(EXPECTED, inputs.expected)
        script = Path(name) / "script.yaml"
        script.write_text(yaml.safe_dump(inputs.script(), allow_unicode=True))
        _upload(scene, inputs)
        _fill_claim(scene)
        for run_name, sets in volumes(inputs).items():
            _submit(scene, run_name, script, sets)
    # Its pod stays for a day, and later scenarios wait for a namespace without pods.
    scene.user.run("delete", "jobs,networkpolicies", "-l", _STAGE_LABEL, "-n", NAMESPACE)
    scene.user.run("delete", "persistentvolumeclaim", _CLAIM, "-n", NAMESPACE, "--wait=false")


def _upload(scene: Scene, inputs: Inputs) -> None:
    files = scene.files()
    for path in (inputs.archive, inputs.rows / TRAIN_FILE, inputs.rows / val_file("en")):
        files.put_file(str(path), f"{_INPUTS}/{path.name}")
    for path in sorted(inputs.database.iterdir()):
        files.put_file(str(path), f"{_INPUTS}/database/{path.name}")


def _fill_claim(scene: Scene) -> None:
    """Fill the claim as a person does: by the Job of manifests/stage.yaml, with its image, claim, source and folder set."""
    ports = override("common.yaml", "cluster", "networkPolicy")["egress"][0]["ports"]
    job, policy = yaml.safe_load_all(_STAGE.read_text())
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    container["image"] = yaml.safe_load(scene.image.read_text())["cluster"]["image"]["ref"]
    container["imagePullPolicy"] = "Never"
    container["command"][3:] = [f"s3://{_INPUTS}/database", "--to", f"/claim/{_FOLDER}"]
    container["envFrom"] = [{"secretRef": {"name": S3_SECRET}}]
    pod["volumes"][0]["persistentVolumeClaim"]["claimName"] = _CLAIM
    policy["spec"]["egress"][1]["ports"] = [{"protocol": "TCP", "port": port} for port in (443, *ports)]
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": _CLAIM},
             "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    scene.user.create([claim, job, policy], namespace=NAMESPACE)
    scene.user.run(
        "wait", "--for=condition=complete", "jobs", "-l", _STAGE_LABEL, "-n", NAMESPACE, "--timeout=600s", timeout_s=620
    )
    scene.evidence.text(STAGED, scene.user.run("logs", "-l", _STAGE_LABEL, "-n", NAMESPACE, "--tail=-1"))


def _submit(scene: Scene, name: str, script: Path, sets: tuple[str, ...]) -> None:
    run = Run(scene, "opd-agent", name)
    with run.recorded():
        run.submit(EXPERIMENT, *LAYERS, script, sets=sets)
        with run.followed():
            run.until_ended()
    files, kept = scene.files(), f"{BUCKET}/{PREFIX}/{name}/{file_key('train', 1)}"
    if files.exists(kept):
        scene.evidence.data(f"{name}.{TRAJECTORIES}", files.cat(kept))
    run.uninstall()
