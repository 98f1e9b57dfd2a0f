"""`make submit` of the other kinds, submitted by a Job and by the operator in turn; one has its inputs in the store."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.e2e.cluster.services import BUCKET
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import PREFIX, ROOT, Scene

from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import write_parquet

INPUTS = "inputs"
_SPECS = ROOT / "tests" / "e2e_cpu" / "specs"
_WORKER = OVERRIDES / "worker.yaml"


def play(scene: Scene) -> None:
    """Gather the evidence of four runs, one after the other."""
    _upload_inputs(scene)
    _submit(
        scene, "grpo", _SPECS / "grpo.yaml", _WORKER, OVERRIDES / "grpo-from-s3.yaml", sets=("trainer.save_freq=3",)
    )
    _submit(scene, "opd-agent", EXPERIMENTS / "opd-agent-quickstart.yaml", _WORKER, OVERRIDES / "opd-agent.yaml")
    _submit(scene, "eval", _SPECS / "eval.yaml", _WORKER, OVERRIDES / "eval.yaml")
    of_grpo = (
        f"convert.checkpoint=s3://{BUCKET}/{PREFIX}/grpo/checkpoints/global_step_3",
        f"convert.target=s3://{BUCKET}/{PREFIX}/grpo/model",
    )
    _submit(scene, "convert", EXPERIMENTS / "convert.yaml", OVERRIDES / "convert.yaml", sets=of_grpo)
    scene.evidence.text("s3-model.txt", "\n".join(scene.objects(f"{PREFIX}/grpo/model/")))
    scene.evidence.text("list.txt", Run(scene, "grpo", "grpo").opdctl("list", f"s3://{BUCKET}/{PREFIX}"))


def _submit(scene: Scene, kind: str, experiment: Path, *overrides: Path, sets: tuple[str, ...] = ()) -> None:
    run = Run(scene, kind, kind)
    with run.recorded():
        run.submit(experiment, *overrides, sets=sets)
        with run.followed():
            run.until_ended()
    run.uninstall()


def _upload_inputs(scene: Scene) -> None:
    """The toy task's student and rows, as files of the store."""
    files = scene.files()
    with tempfile.TemporaryDirectory() as folder:
        for path in write_parquet(folder, seed=1):
            files.put_file(str(path), f"{BUCKET}/{INPUTS}/{path.name}")
    for path in sorted(Path(STUDENT_DIR).iterdir()):
        files.put_file(str(path), f"{BUCKET}/{INPUTS}/student/{path.name}")
