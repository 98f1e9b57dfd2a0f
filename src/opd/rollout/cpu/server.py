"""The rollout server: verl's server contract over an engine that computes in a thread of its own.

A plain class, so that it can be tested without Ray; `opd.rollout.cpu.replica` makes a Ray actor of it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from transformers.utils.logging import disable_progress_bar

from opd.isolation.serving import load_named
from opd.rollout.cpu.engine import EngineConfig, Request, RolloutEngine
from opd.rollout.cpu.model import build_model, check_complete

Result = TypeVar("Result")


@dataclass(kw_only=True)
class TokenOutput:
    """The fields of `verl.workers.rollout.replica.TokenOutput` (0.9.1), which this process does not import."""

    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any]
    stop_reason: str = "completed"  # an end token or the length, as verl's vLLM server reports both
    num_preempted: int = 0
    routed_experts: None = None


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Parts of a server."""

    engine: EngineConfig
    hf_config: Any
    """The model's transformers config, overrides applied."""
    model_path: str
    load_weights: bool
    """Read the weights of `model_path`; False waits for the trainer's."""
    trust_remote_code: bool = False
    script: str | None = None
    """`package.module:function` or `file.py:function` for tests: prompt's token ids -> the answer's; None samples it."""


class RolloutServer:
    """The methods that verl 0.9.1 calls on a rollout server (verl's own: `vLLMHttpServer`).

    One thread builds the engine and computes. If a step raises, every waiting and every later call fails with its error.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._script = load_named(config.script, "_opd_script") if config.script else None
        self._has_weights, self._is_checked = config.load_weights, False
        self._came: set[str] = set()
        self._global_steps: int | None = None
        self._answers: dict[Request, asyncio.Future[Request]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._thread = ThreadPoolExecutor(1, "rollout-engine")
        self._engine: RolloutEngine = self._thread.submit(self._build).result()

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
        if not self._is_checked:
            engine.check_rows()
            self._is_checked = True

    async def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in the engine's thread."""
        if self._failure is not None:
            raise self._stopped()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _stopped(self) -> RuntimeError:
        error = RuntimeError(f"the rollout engine stopped: {type(self._failure).__name__}: {self._failure}")
        error.__cause__ = self._failure
        return error

    async def _step_to_end(self) -> None:
        """Step the engine until every request has its answer."""
        try:
            while self._answers:
                for request in await self._call(self._engine.step):
                    answer = self._answers.pop(request)
                    if not answer.cancelled():
                        answer.set_result(request)
        except Exception as error:  # noqa: BLE001  those who wait raise it
            self._failure = error
            for answer in self._answers.values():
                if not answer.cancelled():
                    answer.set_exception(self._stopped())
            self._answers.clear()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
    ) -> TokenOutput:
        """Answer one prompt.

        Raises:
            ValueError: see `RolloutEngine.submit`; also for images and video, which the engine cannot read.
            RuntimeError: there are no weights yet, or the engine stopped.
        """
        if image_data or video_data:
            raise ValueError(f"request {request_id}: the CPU rollout takes text only, not images or video")
        answer: asyncio.Future[Request] = asyncio.get_running_loop().create_future()

        def submit() -> None:
            if not self._has_weights:
                raise RuntimeError(f"request {request_id}: the rollout has no weights; sync the trainer's first")
            self._answers[self._engine.submit(prompt_ids, sampling_params, request_id, self._script)] = answer

        await self._call(submit)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_to_end())
        request = await answer
        return TokenOutput(
            token_ids=request.token_ids,
            log_probs=request.logprobs if request.sampling.logprobs else None,
            extra_fields={"global_steps": self._global_steps, "num_cached_tokens": 0},
        )

    async def load_weights(self, tensors: Mapping[str, torch.Tensor], last: bool, global_steps: int | None) -> None:
        """Take a piece of the trainer's weights; `last` completes the set.

        Raises:
            RuntimeError: a tensor has another shape; or requests are unfinished, whose answers would mix two sets of weights.
            ValueError: see `check_complete`; the server then answers nothing until a complete set has come.
        """
        await self._call(self._load, tensors, last, global_steps)

    def _load(self, tensors: Mapping[str, torch.Tensor], last: bool, global_steps: int | None) -> None:
        if num := self._engine.num_unfinished:
            raise RuntimeError(f"weight sync: {num} requests are unfinished; wait for them")
        # Until the set is complete, and after any error, there are no weights to answer with.
        came, self._came, self._has_weights = self._came | tensors.keys(), set(), False
        self._engine.model.load_state_dict(tensors, strict=False)
        if not last:
            self._came = came
            return
        check_complete(self._engine.model, came)
        self._check_once(self._engine)
        self._has_weights, self._global_steps = True, global_steps

    async def sleep(self) -> None:
        """Wait for the last request, then give key-value memory back while the trainer works; the weights stay."""
        if self._stepping is not None:
            await self._stepping
        await self._call(self._engine.release_memory)
