"""`make submit` of the other kinds, submitted by a Job and by the operator in turn; one has its inputs in the store."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.e2e.cluster.services import BUCKET
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import PREFIX, ROOT, Scene

from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import write_parquet
from opd_envs.database_folder import write_archive
from opd_envs.travel.toy.task import make_world

INPUTS, _ARCHIVE = "inputs", "travel.tar.gz"
_SPECS = ROOT / "tests" / "e2e_cpu" / "specs"
_WORKER = OVERRIDES / "worker.yaml"


def play(scene: Scene) -> None:
    """Gather the evidence of four runs, one after the other."""
    sha256 = _upload_inputs(scene)
    _submit(
        scene, "grpo", _SPECS / "grpo.yaml", _WORKER, OVERRIDES / "grpo-from-s3.yaml", sets=("trainer.save_freq=3",)
    )
    database = (
        "agent.database_dir=/databases/travel",
        f"cluster.toolDatabase.url=s3://{BUCKET}/{INPUTS}/{_ARCHIVE}",
        f"cluster.toolDatabase.sha256={sha256}",
    )
    agent = (EXPERIMENTS / "opd-agent-quickstart.yaml", _WORKER, OVERRIDES / "opd-agent.yaml")
    _submit(scene, "opd-agent", *agent, sets=database)
    _submit(scene, "eval", _SPECS / "eval.yaml", _WORKER, OVERRIDES / "eval.yaml")
    of_grpo = (
        f"convert.checkpoint=s3://{BUCKET}/{PREFIX}/grpo/checkpoints/global_step_3",
        f"convert.target=s3://{BUCKET}/{PREFIX}/grpo/model",
    )
    _submit(scene, "convert", EXPERIMENTS / "convert.yaml", OVERRIDES / "convert.yaml", sets=of_grpo)
    scene.evidence.text("s3-model.txt", "\n".join(scene.objects(f"{PREFIX}/grpo/model/")))
    scene.evidence.text("list.txt", Run(scene, "grpo", "grpo").opdctl("list", "--store", f"s3://{BUCKET}/{PREFIX}"))


def _submit(scene: Scene, kind: str, experiment: Path, *overrides: Path, sets: tuple[str, ...] = ()) -> None:
    run = Run(scene, kind, kind)
    with run.recorded():
        run.submit(experiment, *overrides, sets=sets)
        with run.followed():
            run.until_ended()
    run.uninstall()


def _upload_inputs(scene: Scene) -> str:
    """Put the toy task's student and rows and the agent's database into the store; return the archive's SHA-256."""
    files = scene.files()
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / _ARCHIVE
        database = Path(folder) / "database"
        make_world(database)
        sha256 = write_archive(database, archive)
        for path in (*write_parquet(folder, seed=1), archive):
            files.put_file(str(path), f"{BUCKET}/{INPUTS}/{path.name}")
    for path in sorted(Path(STUDENT_DIR).iterdir()):
        files.put_file(str(path), f"{BUCKET}/{INPUTS}/student/{path.name}")
    return sha256
