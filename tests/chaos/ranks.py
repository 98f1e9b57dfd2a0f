"""The scenario of two ranks with a disk each: nodes as pods see them, killed at once, two of three disks lost with them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from pathlib import Path

from tests.chaos.attempt import ROOT, RUN_ID, SPEC, Broken, require
from tests.chaos.compare import Places
from tests.chaos.context import Context
from tests.chaos.scenario import scenario
from tests.e2e_cpu import pods
from tests.runs.s3 import server as s3

from opd.experiment import dump_spec, load_spec
from opd.runs.manifest import complete_steps
from opd.store.local import LocalStore

TIMEOUT_S = 900.0
_TWO_RANKS = ("trainer.gpus_per_node=2",)


@scenario(
    done="2 ranks on Ray nodes with a disk each, store on S3; all killed, the driver's and one rank's disk lost",
    promised="each rank saves, uploads and fetches its own shards; ends equal to the uninterrupted run of 2 ranks",
)
def two_ranks_own_disks(context: Context) -> str:
    _require_namespaces()
    reference = context.case("reference", sets=_TWO_RANKS)
    reference.finish()
    folder = context.folder / "pods"
    folder.mkdir()
    with s3.running_server(context.folder / "s3") as port:
        bucket = context.folder / "s3" / "data" / s3.BUCKET
        places = Places(local=LocalStore(bucket / RUN_ID), store=LocalStore(bucket / RUN_ID))
        words = ("python", "-m", "opd.pods.start", str(_experiment(folder)))
        # Ray's nodes start where their volume is: the code is found by its absolute path.
        environment = {**s3.environment(port), "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with pods.cluster(folder, num_workers=2, shared=False, environment=environment) as cluster:
            cluster.submit(*words, job="first")
            _wait_for_step(cluster, places, 3)
            time.sleep(random.Random(context.shared.seed).uniform(0.0, 2.0))
            cluster.stop()
        newest = max(complete_steps([places.store]))
        _must_be_disjoint(folder, newest)
        for name in ("head", "worker-1"):
            shutil.rmtree(folder / "pods" / name)
        context.say(f"all nodes killed after step {newest}, the disks of head and worker-1 are lost")
        with pods.cluster(folder, num_workers=2, shared=False, environment=environment) as cluster:
            cluster.submit(*words, job="second")
            ended = cluster.wait("second", TIMEOUT_S)
            log = cluster.log("second")
        (folder / "second.log").write_text(log)
        require(ended == "SUCCEEDED", f"the second job ended as {ended}; see {folder / 'second.log'}")
        require(f"resuming from step {newest} " in log, f"it did not resume from {newest}; see {folder / 'second.log'}")
        context.must_equal(reference.places, places, num_starts=2, same_spec=False)
    return f"shards of step {newest} on two disks, two of three disks lost, resumed from {newest}; equal"


def _experiment(folder: Path) -> Path:
    """The experiment as a chart's ConfigMap holds it."""
    url = f"s3://{s3.BUCKET}"
    loaded = load_spec(str(SPEC), env={}, sets=[f"store.url={url}", "trainer.nnodes=2"])
    path = folder / "exp.json"
    path.write_text(json.dumps(dump_spec(loaded.spec)))
    return path


def _wait_for_step(cluster: pods.Cluster, places: Places, step: int) -> None:
    def is_there() -> bool:
        ended = cluster.has_ended("first")
        require(ended is None, f"the first job ended as {ended}: {cluster.log('first')[-600:] if ended else ''}")
        return step in complete_steps([places.store])

    pods.wait_for(is_there, TIMEOUT_S, f"checkpoint {step}", lambda: cluster.log("first"))


def _must_be_disjoint(folder: Path, step: int) -> None:
    """Check that each rank's shard is on its own node's disk alone."""
    disks = {name: folder / "pods" / name / "volume" / "out" / RUN_ID for name in ("head", "worker-0", "worker-1")}
    found = {
        name: sorted(path.name for path in disk.glob(f"checkpoints/global_step_{step}/actor/model_*"))
        for name, disk in disks.items()
    }
    wanted = [[], ["model_world_size_2_rank_0.pt"], ["model_world_size_2_rank_1.pt"]]
    require(sorted(found.values()) == wanted, f"shards of step {step}: {found}")


def _require_namespaces() -> None:
    tried = subprocess.run(
        ["unshare", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise Broken(f"nodes with disks and host names of their own need root: {tried.stderr.strip()}")
