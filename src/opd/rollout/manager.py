"""The rollouts of a run: one rollout worker in this process, or several as Ray actors."""

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import ray
from omegaconf import DictConfig
from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import LLMServerClient

from opd.cluster.nodes import working_nodes
from opd.cluster.shutdown import GracefulStop
from opd.rollout.batches import Batch, Begun, RolloutReport
from opd.rollout.carry import Growth
from opd.rollout.seeds import TRAIN
from opd.rollout.worker import RolloutWorker
from opd.runs.progress import PROGRESS

PROGRESS_POLL_S = 5.0
TELL_S = 60.0
"""Between two lines about answers that are only measured, which may take as long as many steps."""
Result = TypeVar("Result")


class RolloutManager:
    """The rollout workers.

    `rollout.agent.num_workers: 0` runs the loops and the rewards in a thread of this process, with an event loop. So two
    processes fewer start, and no sample takes a round trip. One or more workers are Ray actors spread over the nodes.
    """

    def __init__(self, config: DictConfig, llm_client: LLMServerClient):
        num_workers = int(config.actor_rollout_ref.rollout.agent.num_workers)
        self._stop: GracefulStop | None = None
        self._num_finished = self._num_asked = 0
        self._tell_at_s = math.inf
        self._local: RolloutWorker | None = None
        self._actors: list[ActorHandle] = []
        if num_workers == 0:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True).start()
            self._local = asyncio.run_coroutine_threadsafe(_local(config, llm_client), self._loop).result()
            return
        nodes, actor = working_nodes(), ray.remote(RolloutWorker)
        for i in range(num_workers):
            affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=True)
            options = {"name": f"rollout_worker_{i}_{uuid4().hex[:8]}", "scheduling_strategy": affinity}
            self._actors.append(actor.options(**options).remote(config, llm_client))

    def generate(self, batch: Batch, stop: GracefulStop | None = None) -> RolloutReport:
        """Answer all prompts and return the report of all workers; `RolloutReport.check` raises what ended one of them.

        Args:
            stop: cuts a recorded batch (`RolloutWorker.cut`) once the run is asked to end.
        """
        total, self._stop, self._num_asked = RolloutReport(), stop, len(batch.prompts) * batch.num_samples
        if batch.partition != TRAIN:
            self._tell_at_s = time.monotonic() + TELL_S
        for report in self._run(batch):
            total.add(report)
        self._tell_at_s = math.inf
        return total

    def _run(self, batch: Batch) -> Iterator[RolloutReport]:
        """Yield every worker's report; a lost worker reports its end, so that the others' answers are not lost with it."""
        if self._local is not None:
            yield self._await_local(self._local, self._local.generate(batch))
            return
        parts = batch.split(len(self._actors))
        calls = [actor.generate.remote(part) for actor, part in zip(self._actors, parts, strict=False)]
        self._await_actors(calls)
        for running in calls:
            try:
                yield ray.get(running)
            except ray.exceptions.RayError as lost:
                yield RolloutReport(fault=lost)

    def advance(self, slots: Sequence[Sequence[Begun]], num_tokens: int) -> list[list[Growth]]:
        """Make a round of the schedule `carry`, see `RolloutWorker.advance`.

        Raises:
            ray.exceptions.RayError: a rollout actor was lost.
        """
        if self._local is not None:
            return self._await_local(self._local, self._local.advance(slots, num_tokens))
        num_each = -(-len(slots) // len(self._actors))
        chunks = [slots[start : start + num_each] for start in range(0, len(slots), num_each)]
        calls = [actor.advance.remote(chunk, num_tokens) for actor, chunk in zip(self._actors, chunks, strict=False)]
        self._await_actors(calls)
        return [grown for of_actor in ray.get(calls) for grown in of_actor]

    def _await_actors(self, calls: list[ray.ObjectRef]) -> None:
        while ray.wait(calls, num_returns=len(calls), timeout=PROGRESS_POLL_S)[1]:
            self._note(sum(map(_num_finished, self._actors)))
            if self._stop is not None and self._stop.requested:
                for actor in self._actors:
                    actor.cut.remote()

    def _await_local(self, worker: RolloutWorker, call: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        while not concurrent.futures.wait([future], PROGRESS_POLL_S).done:
            self._note(worker.num_finished)
            if self._stop is not None and self._stop.requested:
                asyncio.run_coroutine_threadsafe(worker.cut(), self._loop)
        return future.result()

    def _note(self, num_finished: int) -> None:
        """Tell progress where a conversation more has ended: a batch may take hours, and no answer of it this long."""
        if num_finished != self._num_finished:
            self._num_finished = num_finished
            PROGRESS.tick()
        if time.monotonic() > self._tell_at_s:
            self._tell_at_s += TELL_S
            print(f"{num_finished} of {self._num_asked} answers have ended", flush=True)


async def _local(config: DictConfig, llm_client: LLMServerClient) -> RolloutWorker:
    return RolloutWorker(config, llm_client)  # verl's classes take the running event loop in their constructors


def _num_finished(actor: ActorHandle) -> int:
    """Return what a rollout actor has answered so far; 0 of an actor that is lost or does not answer."""
    try:
        num: int = ray.get(actor.finished.remote(), timeout=PROGRESS_POLL_S)
        return num
    except ray.exceptions.RayError:
        return 0
