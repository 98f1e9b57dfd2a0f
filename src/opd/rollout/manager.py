"""The trainer's agent-loop manager: one rollout worker in this process, or several as Ray actors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import ray
from omegaconf import DictConfig
from ray.actor import ActorHandle
from tensordict import TensorDict
from verl.workers.rollout.llm_server import LLMServerClient

from opd.cluster.nodes import working_nodes
from opd.rollout.carry import Growth
from opd.rollout.worker import Begun, RolloutActor, RolloutReport, RolloutWorker
from opd.runs.progress import PROGRESS

PROGRESS_POLL_S = 5.0
Result = TypeVar("Result")


class RolloutManager:
    """What verl's V1 trainer asks of an agent-loop manager: `generate_sequences`, here blocking and with a report.

    `rollout.agent.num_workers: 0` runs the loops and the rewards in this process (a thread with an event loop): two
    processes fewer to start, and no round trip a sample. One or more workers are Ray actors spread over the nodes.
    """

    def __init__(self, config: DictConfig, llm_client: LLMServerClient, reward_handles: list[ActorHandle] | None):
        num_workers = int(config.actor_rollout_ref.rollout.agent.num_workers)
        self._report = RolloutReport()
        self.on_report: Callable[[RolloutReport], None] | None = None
        """Told of each batch as soon as it is answered, before anything else can fail."""
        self.is_asked_to_end: Callable[[], bool] = lambda: False
        """Asked while a batch is answered; from then on one whose answers count one by one is cut, see `RolloutWorker.cut`."""
        self._num_finished = 0
        self._local: RolloutWorker | None = None
        self._actors: list[ActorHandle] = []
        if num_workers == 0:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True).start()
            self._local = asyncio.run_coroutine_threadsafe(
                self._make_local(config, llm_client, reward_handles), self._loop
            ).result()
            return
        nodes = working_nodes()
        for i in range(num_workers):
            affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=True)
            options = {"name": f"rollout_worker_{i}_{uuid4().hex[:8]}", "scheduling_strategy": affinity}
            self._actors.append(RolloutActor.options(**options).remote(config, llm_client, None, reward_handles))

    @staticmethod
    async def _make_local(
        config: DictConfig, llm_client: LLMServerClient, reward_handles: list[ActorHandle] | None
    ) -> RolloutWorker:
        # verl's classes take the running event loop in their constructors.
        return RolloutWorker(config, llm_client, None, reward_handles)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Answer all prompts; returns when every row is stored, or the batch is cut.

        Raises:
            RuntimeError: not a single trajectory of the batch came through.
            Exception: whatever ended a worker, or kept it from storing its rows.
        """
        batch = RolloutReport()
        for report in self._run(prompts):
            batch.add(report)
        self._report.add(batch)
        if self.on_report is not None:
            self.on_report(batch)
        if batch.fault is not None:
            raise batch.fault
        if batch.num_failed == batch.num_trajectories:
            raise RuntimeError(f"all {batch.num_trajectories} trajectories failed; the first: {batch.first_error}")

    def _run(self, prompts: TensorDict) -> Iterator[RolloutReport]:
        """Every worker's report; one that was lost reports its end, so that the others' answers are not lost with it."""
        if self._local is not None:
            yield self._await_local(self._local, self._local.generate(prompts))
            return
        chunks = prompts.chunk(min(len(self._actors), len(prompts)))
        calls = [actor.generate.remote(chunk) for actor, chunk in zip(self._actors, chunks, strict=False)]
        self._await_actors(calls)
        for running in calls:
            try:
                yield ray.get(running)
            except ray.exceptions.RayError as lost:
                yield RolloutReport(fault=lost)

    def advance(self, slots: Sequence[Sequence[Begun]], num_tokens: int) -> list[list[Growth]]:
        """A round of the schedule `carry`, see `RolloutWorker.advance`.

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
            if self.is_asked_to_end():
                for actor in self._actors:
                    actor.cut.remote()

    def _await_local(self, worker: RolloutWorker, call: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        while not concurrent.futures.wait([future], PROGRESS_POLL_S).done:
            self._note(worker.num_finished)
            if self.is_asked_to_end():
                asyncio.run_coroutine_threadsafe(worker.cut(), self._loop)
        return future.result()

    def _note(self, num_finished: int) -> None:
        """A conversation more is progress: a batch may take hours, and no answer of it this long."""
        if num_finished != self._num_finished:
            self._num_finished = num_finished
            PROGRESS.tick()

    def take_report(self) -> RolloutReport:
        """The counts since the last call."""
        report, self._report = self._report, RolloutReport()
        return report


def _num_finished(actor: ActorHandle) -> int:
    """What a rollout actor has answered so far; nothing of one that is lost or does not answer."""
    try:
        num: int = ray.get(actor.finished.remote(), timeout=PROGRESS_POLL_S)
        return num
    except ray.exceptions.RayError:
        return 0
