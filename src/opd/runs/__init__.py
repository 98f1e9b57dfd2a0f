"""The run directory: attempts, metrics, logs, verified checkpoints and results, on the local disk and in an object store.

    <root>/<run id>/
      run.json, spec.json                        the experiment of the run id                     identity.py
      attempts/NNNN/owner.json                   the owner of the attempt (create-only)           attempts.py
      attempts/NNNN/{heartbeat,ended}.json       its lease, and its end                           attempts.py
      attempts/NNNN/.alive                       a lock of the living process, on the disk        lease.py
      attempts/NNNN/origin.json                  version, commit, image, devices                  origin.py
      attempts/NNNN/metrics.jsonl[.000001 ...]   one row a step, streamed in parts                metrics.py, stream.py
      attempts/NNNN/driver.log[.000001 ...]      the driver's output, streamed                    driver_log.py, stream.py
      checkpoints/global_step_N/{actor/..., data.pt, carried.json, manifest.json, COMPLETE}       checkpoints.py
      checkpoints/.saving-NNNN/global_step_N     an attempt's save before its seal                shards.py
      tokens/step-N.json                         rollouts of a step token by token        opd.trainer.token_log
      result.json | fatal.json                   the end of the run                               result.py
      summary.json                               the run's line in a list                         summary.py

A launcher opens `run.Run`, and its trainer writes through it.
"""
