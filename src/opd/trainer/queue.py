"""The run's TransferQueue: it starts beside the trainer, and ends also where one of its actors never found a place."""

from __future__ import annotations

import contextlib

import ray
import transfer_queue as tq
from omegaconf import DictConfig

from opd.worker.background import Job

_KILL_POLL_S = 0.5


class RunQueue:
    """TransferQueue as the trainer's process starts and closes it.

    Args:
        config: verl's `transfer_queue`.
    """

    def __init__(self, config: DictConfig) -> None:
        storage = config.backend.SimpleStorage
        # As TransferQueue names them: (name, namespace), None for the run's own.
        self._actors: list[tuple[str, str | None]] = [("TransferQueueController", "transfer_queue")]
        self._actors += [(f"TransferQueueStorageUnit#{i}", None) for i in range(storage.num_data_storage_units)]
        self._start = Job(lambda: tq.init(config), name="transfer-queue")

    def wait_until_up(self) -> None:
        """Until it can be used; raises what its start raised."""
        self._start.result()

    def close(self) -> None:
        """End it. A start that has not ended waits for its actors without a bound, so they are taken from it."""
        while not self._start.wait(_KILL_POLL_S):
            for name, namespace in self._actors:
                with contextlib.suppress(ValueError):  # not there yet, or no more
                    ray.kill(ray.get_actor(name, namespace=namespace))
        tq.close()
