"""The run directory: attempts, metrics, logs, verified checkpoints and results, on local disk and in an object store.

    <root>/<run id>/
      run.json, spec.json                        which experiment the run id stands for          identity.py
      attempts/NNNN/owner.json                   who owns the attempt (create-only)              attempts.py
      attempts/NNNN/{heartbeat,ended}.json       its lease, and its end                          attempts.py
      attempts/NNNN/.alive                       locked while its process lives, on the disk     process.py
      attempts/NNNN/origin.json                  version, commit and image that the attempt ran  origin.py
      attempts/NNNN/metrics.jsonl[.000001 ...]   one row a step, streamed in parts               metrics.py, stream.py
      attempts/NNNN/driver.log[.000001 ...]      everything the driver printed, streamed         driver_log.py, stream.py
      checkpoints/global_step_N/{actor/..., data.pt, manifest.json, COMPLETE}                    checkpoints.py
      checkpoints/global_step_N/carried.json     responses on their way, under rollout.schedule carry, sealed with the others
      checkpoints/.saving-NNNN/global_step_N     what an attempt saves, until it is sealed       shards.py
      tokens/step-N.json                         rollouts of a step token by token               tokens.py, kept_files.py
      result.json | fatal.json                   how the run ended                               result.py
      summary.json                               what a list shows of it                         summary.py

A launcher opens `run.Run`; its trainer writes through it, or from another process through `writer.RunWriter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opd.store.base import Store


def clear_fatal(store: Store, run: str) -> bool:
    """Let a run of a store be started again after fatal.json; return True if there was one.

    Args:
        store: the store that holds the runs.
        run: the run's name.
    """
    from opd.runs import result

    return result.clear_fatal(store.child(run))
