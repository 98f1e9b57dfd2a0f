"""The rollout server: an asyncio front to the engine, which computes in a thread of its own.

A plain class, so that it can be tested without Ray; `opd.cpu.replica` makes a Ray actor of it.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from opd.rollout.config import EngineConfig
from opd.rollout.engine import RolloutEngine
from opd.rollout.model import WeightLoader, build_model
from opd.rollout.request import Answer, Request
from opd.rollout.script import Script, ScriptConfig
from opd.rollout.wire import VerlTokenOutput

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How to build a server."""

    engine: EngineConfig
    hf_config: Any
    """The model's transformers config, overrides applied."""
    model_path: str
    load_weights: bool
    """Read the weights of `model_path`; False waits for the trainer's."""
    trust_remote_code: bool = False
    num_threads: int = 1
    """Threads of a matrix product; part of an answer's arithmetic: fix it per run."""
    script: ScriptConfig | None = None
    """Answers to give instead of sampled ones."""


class RolloutServer:
    """verl's rollout-server contract (0.9.1, as vLLMHttpServer has it) over a `RolloutEngine`.

    The engine lives in one thread: every touch of it is a call posted to that thread, run between two steps. If a step
    raises, every waiting request and every later call fails with that error.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._script = Script(config.script) if config.script else None
        self._wake = threading.Condition()
        self._calls: list[tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]] = []
        self._waiters: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Answer]]] = {}
        self._failure: BaseException | None = None
        self._loader: WeightLoader | None = None
        self._has_weights = config.load_weights
        self._global_steps: int | None = None
        self._admission = asyncio.Event()
        self._admission.set()
        self._rejecting = False
        ready: threading.Event = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="rollout-engine", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            raise RuntimeError(f"the rollout server did not start: {self._failure}") from self._failure

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self, ready: threading.Event) -> None:
        try:
            # torch's thread count is a property of the calling thread's OpenMP pool: set it where the work is done.
            torch.set_num_threads(self._config.num_threads)
            model = build_model(
                self._config.hf_config,
                self._config.model_path if self._config.load_weights else None,
                self._config.trust_remote_code,
            )
            self._engine = RolloutEngine(model, self._config.engine)
            ready.set()
            while True:
                self._run_calls()
                for request, answer in self._engine.step():
                    self._resolve(request, answer)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must reach those who wait for it
            self._fail(error)
            ready.set()

    def _run_calls(self) -> None:
        """Run what was posted; sleep while there is neither a call nor a request."""
        with self._wake:
            while not self._calls and not self._engine.num_unfinished:
                self._wake.wait()
            calls, self._calls = self._calls, []
        for function, loop, future in calls:
            try:
                result = function()
            except (ValueError, RuntimeError, NotImplementedError) as error:
                _deliver(loop, future, error=error)
            else:
                _deliver(loop, future, result=result)

    def _resolve(self, request: Request, answer: Answer) -> None:
        loop, future = self._waiters.pop(id(request))
        _deliver(loop, future, result=answer)

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._failure = error
            calls, self._calls = self._calls, []
        waiting = [(loop, future) for _, loop, future in calls] + list(self._waiters.values())
        self._waiters.clear()
        for loop, future in waiting:
            _deliver(loop, future, error=self._broken())

    def _broken(self) -> RuntimeError:
        failure = self._failure
        error = RuntimeError(f"the rollout engine stopped: {type(failure).__name__}: {failure}")
        error.__cause__ = failure
        return error

    async def _call(self, function: Callable[[], Result]) -> Result:
        """Run a function in the engine's thread and wait for its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with self._wake:
            if self._failure is not None:
                raise self._broken()
            self._calls.append((function, loop, future))
            self._wake.notify()
        return await future

    # -- generation ---------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        mm_processor_kwargs: Any = None,
        priority: int = 0,
    ) -> VerlTokenOutput:
        """Answer one prompt; arrives at the caller as verl's `TokenOutput`.

        Raises:
            ValueError: see `RolloutEngine.submit`; also images, video and audio, which the engine cannot read.
            RuntimeError: no weights yet, or the engine stopped.
        """
        if image_data or video_data or audio_data or mm_processor_kwargs:
            raise ValueError(f"request {request_id}: the CPU rollout takes text only, not images, video or audio")
        while not self._admission.is_set():
            if self._rejecting:
                return self._output(Answer(token_ids=[], logprobs=[], stop_reason="aborted"), logprobs=False)
            await self._admission.wait()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def submit() -> Request:
            if not self._has_weights:
                raise RuntimeError(f"request {request_id}: the rollout has no weights yet; sync the trainer's first")
            script = self._script.reply(prompt_ids) if self._script else None
            request = self._engine.submit(prompt_ids, sampling_params, request_id, script)
            self._waiters[id(request)] = (loop, future)
            return request

        try:
            request = await self._call(submit)
            return self._output(await future, request.sampling.logprobs)
        except asyncio.CancelledError:
            await self._call(partial(self._abort, request_id))
            raise

    def _output(self, answer: Answer, logprobs: bool) -> VerlTokenOutput:
        return VerlTokenOutput(
            token_ids=answer.token_ids,
            log_probs=answer.logprobs if logprobs else None,
            stop_reason=answer.stop_reason,
            num_preempted=0,
            extra_fields={"global_steps": self._global_steps, "num_cached_tokens": 0},
        )

    def _abort(self, request_id: str | None) -> list[str]:
        stopped = self._engine.abort(request_id)
        for request, answer in stopped:
            self._resolve(request, answer)
        return [request.request_id for request, _ in stopped]

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Stop one request; its caller gets what was generated, with stop reason `aborted`."""
        stopped = await self._call(partial(self._abort, request_id))
        return {"aborted": bool(stopped), "request_id": request_id}

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """Stop all requests and hold new ones (or turn them away) until `resume_generation`."""
        self._rejecting = reject_request
        self._admission.clear()
        stopped = await self._call(partial(self._abort, None))
        return {"aborted_count": len(stopped), "request_ids": stopped}

    async def resume_generation(self) -> None:
        """Take requests again after `abort_all_requests`."""
        self._rejecting = False
        self._admission.set()

    async def wait_for_requests_to_drain(self) -> None:
        """Return when no request is unfinished."""
        while await self._call(lambda: self._engine.num_unfinished):
            await asyncio.sleep(0.01)

    # -- weights and memory -------------------------------------------------------------------------------------------

    async def load_weights(
        self, tensors: Mapping[str, torch.Tensor], last: bool, global_steps: int | None = None
    ) -> int:
        """Take a piece of the trainer's weights; `last` completes the set. Returns the number of tensors so far.

        Raises:
            ValueError: see `WeightLoader`; the server then answers nothing until a complete set has come.
            RuntimeError: requests are unfinished, whose answers would mix two sets of weights.
        """
        return await self._call(partial(self._load, tensors, last, global_steps))

    def _load(self, tensors: Mapping[str, torch.Tensor], last: bool, global_steps: int | None) -> int:
        if self._engine.num_unfinished:
            raise RuntimeError(
                f"weight sync: {self._engine.num_unfinished} requests are unfinished; drain or abort them"
            )
        loader = self._loader or WeightLoader(self._engine.model)
        self._loader, self._has_weights = None, False
        loader.load(tensors)
        if not last:
            self._loader = loader
            return loader.num_received
        num_tensors = loader.finish()
        self._has_weights = True
        self._global_steps = global_steps
        self._engine.forget()
        return num_tensors

    async def set_global_steps(self, global_steps: int) -> None:
        """The trainer's step that the weights belong to; reported with every answer."""
        self._global_steps = global_steps

    async def sleep(self) -> None:
        """Give the key-value memory back while the trainer works; the weights stay."""
        await self._call(lambda: self._engine.release_memory())

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Nothing to restore: key-value memory comes with the next request."""

    async def clear_kv_cache(self) -> None:
        """No answer reuses another's keys and values: there is no prefix cache to clear."""

    async def release_kv_cache(self) -> None:
        await self.sleep()

    async def resume_kv_cache(self) -> None:
        await self.wake_up()

    async def start_profile(self, **kwargs: Any) -> None:
        """No profiler here: `py-spy record --pid` on the `ping` of this server shows it whole."""

    async def stop_profile(self) -> None:
        """See `start_profile`."""

    async def ping(self) -> int:
        """This process's id; answers once the engine is built."""
        return os.getpid()


def _deliver(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    *,
    result: Any = None,
    error: BaseException | None = None,
) -> None:
    """Settle a future of another thread's loop; a caller that gave up meanwhile is not an error."""

    def settle() -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    loop.call_soon_threadsafe(settle)
