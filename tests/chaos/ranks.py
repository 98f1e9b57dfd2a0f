"""The scenario of two ranks with a disk each: nodes as pods see them, killed at once, two of three disks lost with them."""

import json
import random
from pathlib import Path

from tests.chaos.attempt import ROOT, RUN_ID, SPEC
from tests.chaos.compare import Places
from tests.chaos.context import Context
from tests.chaos.scenario import scenario
from tests.e2e_cpu import pods
from tests.runs.s3 import server as s3

from opd.experiment import dump_spec, load_spec
from opd.store.local import LocalStore

_TWO_RANKS = ("trainer.gpus_per_node=2",)


@scenario(
    done="2 ranks on Ray nodes with a disk each, store on S3; all killed, the driver's and one rank's disk lost",
    promised="each rank saves, uploads and fetches its own shards; ends equal to the uninterrupted run of 2 ranks",
)
def two_ranks_own_disks(context: Context) -> str:
    reference = context.case("reference", sets=_TWO_RANKS)
    reference.finish()
    folder = context.folder / "pods"
    folder.mkdir()
    with s3.running_server(context.folder / "s3") as port:
        stored = LocalStore(context.folder / "s3" / "data" / s3.BUCKET / RUN_ID)
        words = ("python", "-m", "opd.pods.start", str(_experiment(folder)))
        # Ray's nodes start where their volume is: the code is found by its absolute path.
        environment = {**s3.environment(port), "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        seconds = random.Random(context.shared.seed).uniform(0.0, 2.0)
        newest = pods.resumed_without_two_disks(folder, words, environment, stored, step=3, random_s=seconds)
    context.must_equal(reference.places, Places(local=stored, store=stored), num_starts=2, same_spec=False)
    return f"shards of step {newest} on two disks, two of three disks lost, resumed from {newest}; equal"


def _experiment(folder: Path) -> Path:
    """The experiment as a chart's ConfigMap holds it."""
    url = f"s3://{s3.BUCKET}"
    loaded = load_spec(str(SPEC), env={}, sets=[f"store.url={url}", "trainer.nnodes=2"])
    path = folder / "exp.json"
    path.write_text(json.dumps(dump_spec(loaded.spec)))
    return path
