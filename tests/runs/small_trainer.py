"""A trainer in small: resumes, logs one row a step, saves every fifth step, ends with a result.

Arguments: local root, store URL or "", number of steps, seconds a step, lease in seconds. Prints `step N` after each row.
"""

import logging
import sys
import time

from conftest import chosen, write_step

from opd.errors import Stopped
from opd.runs.manifest import DRIVER_RANK
from opd.runs.run import Run
from opd.runs.shards import upload_shards
from opd.store.base import RetryPolicy

logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s")
root, store, num_steps, step_s, lease_ttl_s = sys.argv[1], sys.argv[2] or None, *map(float, sys.argv[3:6])
# Half a second of patience, so that a test need not wait out a whole outage.
policy = RetryPolicy(max_elapsed_s=0.2, first_wait_s=0.05)
try:
    with Run.open(
        run_id="r",
        local_root=root,
        store_url=store,
        spec={"seed": 1},
        spec_hash="h",
        lease_ttl_s=lease_ttl_s,
        flush_interval_s=0.1,
        policy=policy,
    ) as run:
        decision = chosen(run.checkpoints)
        print("attempt", run.handle.attempt, decision.describe(), flush=True)
        for step in range((decision.step or 0) + 1, int(num_steps) + 1):
            time.sleep(step_s)
            run.log(step, {"opd/loss": 1.0 / step, "attempt": run.handle.attempt})
            print("step", step, flush=True)
            if step % 5 == 0 and run.checkpoints.begin(step):
                folder = run.checkpoints.folder(step)
                write_step(folder, step)
                reports = [
                    upload_shards(rank=rank, step=step, step_dir=folder, store_url=run.handle.store_url, policy=policy)
                    for rank in (DRIVER_RANK, 0)
                ]
                run.checkpoints.finalise(step, reports)
                run.checkpoints.prune(keep_last=2)
        print("done", flush=True)
        run.finish({"accuracy": 0.5})
except Stopped as stopped:
    sys.exit(stopped.exit_code)
