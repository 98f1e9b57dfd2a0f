"""The rollout server: verl's server contract over an engine that computes in a thread of its own.

A plain class, so that it can be tested without Ray; `opd.rollout.cpu.replica` makes a Ray actor of it.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.engine import RolloutEngine
from opd.rollout.cpu.model import WeightLoader, build_model
from opd.rollout.cpu.request import Answer, Request
from opd.rollout.cpu.script import Script, ScriptConfig
from opd.rollout.cpu.thread import EngineThread
from opd.rollout.cpu.wire import VerlTokenOutput

_DRAIN_POLL_S = 0.01


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
    script: ScriptConfig | None = None
    """Answers to give instead of sampled ones."""


class RolloutServer:
    """The methods that verl 0.9.1 calls on a rollout server (verl's own: `vLLMHttpServer`)."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._script = Script(config.script) if config.script is not None else None
        self._has_weights = config.load_weights
        self._checked = False
        self._loader: WeightLoader | None = None
        self._global_steps: int | None = None
        self._admission = asyncio.Event()
        self._admission.set()
        self._rejecting = False
        self._engine = EngineThread(self._build)

    def _build(self) -> RolloutEngine:
        torch.set_num_threads(1)  # the engine asks for it, in this thread
        disable_progress_bar()  # loading weights would draw one into the run's log
        path = self._config.model_path if self._config.load_weights else None
        model = build_model(self._config.hf_config, path, self._config.trust_remote_code)
        engine = RolloutEngine(model, self._config.engine)
        if self._has_weights:
            self._check_once(engine)
        return engine

    def _check_once(self, engine: RolloutEngine) -> None:
        if not self._checked:
            engine.check_rows()
            self._checked = True

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
        """Answer one prompt; arrives at a Ray caller as verl's `TokenOutput`.

        Raises:
            ValueError: see `RolloutEngine.submit`; also for images, video and audio, which the engine cannot read.
            RuntimeError: there are no weights yet, or the engine stopped.
        """
        if image_data or video_data or audio_data or mm_processor_kwargs:
            raise ValueError(f"request {request_id}: the CPU rollout takes text only, not images, video or audio")
        while not self._admission.is_set():
            if self._rejecting:
                return self._output(Answer(token_ids=[], logprobs=[], stop_reason="aborted"), logprobs=False)
            await self._admission.wait()

        def submit(engine: RolloutEngine) -> Request:
            if not self._has_weights:
                raise RuntimeError(f"request {request_id}: the rollout has no weights; sync the trainer's first")
            script = self._script.reply if self._script is not None else None
            return engine.submit(prompt_ids, sampling_params, request_id, script)

        try:
            request, answer = await self._engine.generate(submit)
        except asyncio.CancelledError:
            if not self._engine.failed:
                await self.abort_request(request_id)
            raise
        return self._output(answer, request.sampling.logprobs)

    def _output(self, answer: Answer, logprobs: bool) -> VerlTokenOutput:
        return VerlTokenOutput(
            token_ids=answer.token_ids,
            log_probs=answer.logprobs if logprobs else None,
            stop_reason=answer.stop_reason,
            num_preempted=0,
            extra_fields={"global_steps": self._global_steps, "num_cached_tokens": 0},
        )

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Stop one request; its caller gets what was generated, with stop reason `aborted`."""
        stopped = await self._engine.call(lambda engine: self._engine.abort(engine, request_id))
        return {"aborted": bool(stopped), "request_id": request_id}

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """Stop all requests and hold new ones (or turn them away) until `resume_generation`."""
        self._rejecting = reject_request
        self._admission.clear()
        stopped = await self._engine.call(lambda engine: self._engine.abort(engine, None))
        return {"aborted_count": len(stopped), "request_ids": stopped}

    async def resume_generation(self) -> None:
        """Take requests again after `abort_all_requests`."""
        self._rejecting = False
        self._admission.set()

    async def wait_for_requests_to_drain(self) -> None:
        """Return when no request is unfinished."""
        while await self._engine.call(lambda engine: engine.num_unfinished):
            await asyncio.sleep(_DRAIN_POLL_S)

    # -- weights and memory -------------------------------------------------------------------------------------------

    async def load_weights(self, tensors: Mapping[str, torch.Tensor], last: bool, global_steps: int | None) -> int:
        """Take a piece of the trainer's weights; `last` completes the set. Returns how many tensors have come.

        Raises:
            ValueError: see `WeightLoader`; the server then answers nothing until a complete set has come.
            RuntimeError: requests are unfinished, whose answers would mix two sets of weights.
        """
        return await self._engine.call(lambda engine: self._load(engine, tensors, last, global_steps))

    def _load(
        self, engine: RolloutEngine, tensors: Mapping[str, torch.Tensor], last: bool, global_steps: int | None
    ) -> int:
        if engine.num_unfinished:
            raise RuntimeError(f"weight sync: {engine.num_unfinished} requests are unfinished; drain or abort them")
        loader = self._loader or WeightLoader(engine.model)
        # Until the set is complete, and after any error, there are no weights to answer with.
        self._loader, self._has_weights = None, False
        loader.load(tensors)
        if not last:
            self._loader = loader
            return loader.num_received
        num_tensors = loader.finish()
        self._check_once(engine)
        engine.weights_changed()
        self._has_weights = True
        self._global_steps = global_steps
        return num_tensors

    async def set_global_steps(self, global_steps: int) -> None:
        """The trainer's step that the weights belong to; reported with every answer."""
        self._global_steps = global_steps

    async def sleep(self) -> None:
        """Give key-value memory back while the trainer works; the weights stay."""
        await self._engine.call(lambda engine: engine.release_memory())

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Nothing to restore: key-value memory comes with the next request."""

    async def clear_kv_cache(self) -> None:
        """No answer reuses another's keys and values: there is no prefix cache to clear."""

    async def release_kv_cache(self) -> None:
        """See `sleep`."""
        await self.sleep()

    async def resume_kv_cache(self) -> None:
        """See `wake_up`."""

    async def start_profile(self, **kwargs: Any) -> None:
        """No profiler of its own: point a sampling profiler at the process id that `ping` returns."""

    async def stop_profile(self) -> None:
        """See `start_profile`."""

    async def ping(self) -> int:
        """This process's id; answers once the engine is built."""
        return os.getpid()
