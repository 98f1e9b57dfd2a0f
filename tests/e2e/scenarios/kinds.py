"""`make submit` of the other kinds, submitted by a Job and by the operator in turn, and of a file with a wrong path."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from tests.e2e.cluster.isolation import NODE_IP
from tests.e2e.cluster.services import BUCKET, S3_PORT, S3_SECRET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import PREFIX, ROOT, Scene

from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import write_parquet
from opd_envs.travel.toy import make_world

INPUTS, DATABASE_CLAIM = "inputs", "travel-database"  # manifests/cluster/components/claims has the claim
_SPECS = ROOT / "tests" / "e2e_cpu" / "specs"
_WORKER = OVERRIDES / "worker.yaml"


def play(scene: Scene) -> None:
    """Gather the evidence of four runs, one after the other, and of one that the check before it refuses."""
    _upload_inputs(scene)
    refused = Run(scene, "opd", "refused")
    with refused.recorded():
        refused.submit(EXPERIMENTS / "quickstart.yaml", OVERRIDES / "wrong-path.yaml")
    refused.uninstall()
    _submit(
        scene, "grpo", _SPECS / "grpo.yaml", _WORKER, OVERRIDES / "grpo-from-s3.yaml", sets=("trainer.save_freq=3",)
    )
    _stage_database(scene)
    database = ("agent.database_dir=/databases/travel", f"cluster.toolDatabase.claim={DATABASE_CLAIM}")
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


def _upload_inputs(scene: Scene) -> None:
    """Put the toy task's student and rows and the agent's database into the store."""
    files = scene.files()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "database"
        make_world(database)
        for path in write_parquet(folder, seed=1):
            files.put_file(str(path), f"{BUCKET}/{INPUTS}/{path.name}")
        _put_folder(scene, database, "database")
    _put_folder(scene, Path(STUDENT_DIR), "student")


def _put_folder(scene: Scene, folder: Path, name: str) -> None:
    files = scene.files()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files.put_file(str(path), f"{BUCKET}/{INPUTS}/{name}/{path.relative_to(folder)}")


def _stage_database(scene: Scene) -> None:
    """Fill the claim with the database by manifests/stage.yaml, with image, source and the store's port set."""
    job, policy = yaml.safe_load_all((ROOT / "manifests/stage.yaml").read_text())
    for part in (job, policy):
        part["metadata"] = {"name": "stage-database", "labels": part["metadata"]["labels"]}
    pod = job["spec"]["template"]["spec"]
    pod["volumes"][0]["persistentVolumeClaim"]["claimName"] = DATABASE_CLAIM
    [container] = pod["containers"]
    container["image"] = yaml.safe_load(scene.image.read_text())["cluster"]["image"]["ref"]
    container["command"][3:] = [f"s3://{BUCKET}/{INPUTS}/database", "--to", "/claim"]
    container["envFrom"] = [{"secretRef": {"name": S3_SECRET}}]
    port = {"to": [{"ipBlock": {"cidr": f"{NODE_IP}/32"}}], "ports": [{"protocol": "TCP", "port": S3_PORT}]}
    policy["spec"]["egress"].append(port)
    scene.user.create([policy, job], namespace=NAMESPACE)
    done = lambda: scene.user.get("job", "stage-database", namespace=NAMESPACE)["status"].get("succeeded")  # noqa: E731
    scene.user.until("the claim has the database", done)
