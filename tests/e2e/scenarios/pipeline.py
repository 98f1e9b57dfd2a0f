"""A pipeline that loses its head twice, between two stages and inside of one, beside the same one left alone."""

from __future__ import annotations

import hashlib
import time

from tests.e2e.cluster.services import BUCKET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.pipeline import KILLED_RUN, MODELS, STATUS, WHOLE_RUN
from tests.e2e.scenarios.run import OVERRIDES, RUN_TIMEOUT_S, Run
from tests.e2e.scenarios.scene import PREFIX, ROOT, Scene

PIPELINE = ROOT / "manifests" / "pipelines" / "warmup-distil-toy.yaml"
_OVERRIDES = (OVERRIDES / "worker.yaml", OVERRIDES / "pipeline.yaml")
_MID_STEP_S = 1.0  # a step takes some seconds


def play(scene: Scene) -> None:
    """Gather the evidence of both."""
    whole = Run(scene, "pipeline", WHOLE_RUN)
    with whole.recorded():
        whole.submit(PIPELINE, *_OVERRIDES)
        with whole.followed():
            whole.until_ended()
    whole.uninstall()
    killed = Run(scene, "pipeline", KILLED_RUN)
    with killed.recorded():
        killed.submit(PIPELINE, *_OVERRIDES)
        with killed.followed():
            _until_stored(killed, "warmup", "attempts/0001/owner.json")
            [head] = killed.pods("head")
            scene.stop_launcher(head)  # the next stage does not begin
            _until_stored(killed, "warmup", "result.json")
            killed.lose(head)
            _until_stored(killed, "distil", "checkpoints/global_step_2/COMPLETE")
            scene.evidence.text(STATUS, killed.opdctl("status", killed.name, "-n", NAMESPACE))
            time.sleep(_MID_STEP_S)
            killed.lose(killed.pods("head")[0])
            killed.until_ended()
    killed.uninstall()
    scene.evidence.tree(MODELS, {run.name: _model(run) for run in (whole, killed)})


def _place(run: Run, stage: str) -> str:
    return f"{BUCKET}/{PREFIX}/{run.name}/stages/{run.name}-{stage}"


def _until_stored(run: Run, stage: str, key: str) -> None:
    """Wait until a stage has stored an object."""
    files, name = run.scene.files(), f"{_place(run, stage)}/{key}"
    run.scene.user.until(f"{run.name} has {stage}'s {key}", lambda: files.exists(name), timeout_s=RUN_TIMEOUT_S)
    run.scene.say(f"{run.name} has {stage}'s {key}")


def _model(run: Run) -> dict[str, str]:
    """SHA-256 of the weights that the warm-up left, as they were converted for the next stage."""
    files = run.scene.files()
    names = [name for name in files.find(_place(run, "warmup")) if name.endswith("-huggingface/model.safetensors")]
    return {name.removeprefix(_place(run, "warmup")): hashlib.sha256(files.cat(name)).hexdigest() for name in names}
