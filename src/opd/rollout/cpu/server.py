"""The rollout server: verl's server contract over an engine that computes in a thread of its own.

A plain class, so that it can be tested without Ray; `opd.rollout.cpu.replica` makes a Ray actor of it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers.utils.logging import disable_progress_bar

from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.engine import RolloutEngine
from opd.rollout.cpu.model import WeightLoader, build_model
from opd.rollout.cpu.request import Answer, Request


@dataclass(kw_only=True)
class VerlTokenOutput:
    """The fields of `verl.workers.rollout.replica.TokenOutput` (0.9.1) that the CPU rollout fills."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str
    num_preempted: int
    extra_fields: dict[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return _token_output, (asdict(self),)


def _token_output(fields: dict[str, Any]) -> Any:
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(**fields)


Result = TypeVar("Result")
_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]


class EngineThread:
    """Builds an engine in a thread of its own and steps it while it has requests.

    If building or a step raises, the thread ends and every waiting and every later call fails with that error.
    """

    def __init__(self, build: Callable[[], RolloutEngine]) -> None:
        """Start the thread and wait until `build` is done.

        Raises:
            RuntimeError: `build` failed; the cause is attached.
        """
        self._wake = threading.Condition()
        self._calls: list[tuple[Callable[[RolloutEngine], Any], _Waiter]] = []
        self._waiters: dict[Request, _Waiter] = {}
        self._failure: BaseException | None = None
        self._built = threading.Event()
        threading.Thread(target=self._run, args=(build,), name="rollout-engine", daemon=True).start()
        self._built.wait()
        if self._failure is not None:
            raise self._broken()

    async def call(self, function: Callable[[RolloutEngine], Result]) -> Result:
        """Run `function(engine)` in the thread and return its result or raise its ValueError or RuntimeError."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        with self._wake:
            if self._failure is not None:
                raise self._broken()
            self._calls.append((function, (asyncio.get_running_loop(), future)))
            self._wake.notify()
        return await future

    async def generate(self, submit: Callable[[RolloutEngine], Request]) -> tuple[Request, Answer]:
        """Run `submit(engine)` in the thread and wait for the answer to the request that it returns."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiter = (asyncio.get_running_loop(), future)

        def submit_and_wait(engine: RolloutEngine) -> Request:
            request = submit(engine)
            self._waiters[request] = waiter
            return request

        request = await self.call(submit_and_wait)
        return request, await future

    # -- inside the thread --------------------------------------------------------------------------------------------

    def _run(self, build: Callable[[], RolloutEngine]) -> None:
        try:
            engine = build()
            self._built.set()
            while True:
                self._run_calls(engine)
                for request, answer in engine.step():
                    _settle(self._waiters.pop(request), result=answer)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must reach those who wait for it
            self._fail(error)
        finally:
            self._built.set()

    def _run_calls(self, engine: RolloutEngine) -> None:
        """Run what was posted; sleep while there is neither a call nor a request."""
        with self._wake:
            while not self._calls and not engine.num_unfinished:
                self._wake.wait()
            calls, self._calls = self._calls, []
        for function, waiter in calls:
            try:
                result = function(engine)
            except (ValueError, RuntimeError) as error:
                _settle(waiter, error=error)
            else:
                _settle(waiter, result=result)

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._failure = error
            waiting = [waiter for _, waiter in self._calls] + list(self._waiters.values())
            self._calls = []
        for waiter in waiting:
            _settle(waiter, error=self._broken())

    def _broken(self) -> RuntimeError:
        error = RuntimeError(f"the rollout engine stopped: {type(self._failure).__name__}: {self._failure}")
        error.__cause__ = self._failure
        return error


def _settle(waiter: _Waiter, *, result: Any = None, error: BaseException | None = None) -> None:
    """Settle a future of another thread's loop; a caller that gave up meanwhile is not an error."""
    loop, future = waiter

    def settle() -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    loop.call_soon_threadsafe(settle)


ASSISTANT_HEADER = "<|im_start|>assistant"
"""Opens an assistant turn in the chat template; the prompt of turn k contains it k times (from 1)."""


@dataclass(frozen=True, kw_only=True)
class ScriptConfig:
    """Whose answers, and how a turn is told from the prompt (a request carries nothing else that tells it)."""

    replies: Mapping[str, Sequence[str | None]]
    """Text -> one reply per assistant turn, the last repeating; the first text that the prompt contains counts.
    None leaves a turn to the model."""
    tokenizer_path: str
    end: str = "<|im_end|>"
    """Appended to each reply."""


class Script:
    """Encodes the replies once and finds the one for a prompt."""

    def __init__(self, config: ScriptConfig) -> None:
        from tokenizers import Tokenizer

        empty = [key for key, replies in config.replies.items() if not replies]
        if empty or not config.replies:
            raise ValueError(f"script: needs at least one reply for each text; none for {empty or 'any'}")
        self._tokenizer = Tokenizer.from_file(str(Path(config.tokenizer_path) / "tokenizer.json"))
        self._replies = {
            key: [None if reply is None else self._encode(reply + config.end) for reply in replies]
            for key, replies in config.replies.items()
        }

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def reply(self, prompt_ids: Sequence[int]) -> list[int] | None:
        """Tokens to answer this prompt with, None to let the model answer.

        Raises:
            ValueError: no text of the script occurs in the prompt.
        """
        prompt: str = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        for key, replies in self._replies.items():
            if key in prompt:
                turn = max(prompt.count(ASSISTANT_HEADER) - 1, 0)
                return replies[min(turn, len(replies) - 1)]
        raise ValueError(f"script: none of {', '.join(map(repr, self._replies))} occurs in the prompt {prompt[:200]!r}")


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

        def submit(engine: RolloutEngine) -> Request:
            if not self._has_weights:
                raise RuntimeError(f"request {request_id}: the rollout has no weights; sync the trainer's first")
            script = self._script.reply if self._script is not None else None
            return engine.submit(prompt_ids, sampling_params, request_id, script)

        request, answer = await self._engine.generate(submit)
        return self._output(answer, request.sampling.logprobs)

    def _output(self, answer: Answer, logprobs: bool) -> VerlTokenOutput:
        return VerlTokenOutput(
            token_ids=answer.token_ids,
            log_probs=answer.logprobs if logprobs else None,
            stop_reason="completed",  # an end token or the length, as verl's vLLM server reports both
            num_preempted=0,
            extra_fields={"global_steps": self._global_steps, "num_cached_tokens": 0},
        )

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
            raise RuntimeError(f"weight sync: {engine.num_unfinished} requests are unfinished; wait for them")
        loader = self._loader or WeightLoader(engine.model)
        # Until the set is complete, and after any error, there are no weights to answer with.
        self._loader, self._has_weights = None, False
        loader.load(tensors)
        if not last:
            self._loader = loader
            return loader.num_received
        num_tensors = loader.finish()
        self._check_once(engine)
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

    async def ping(self) -> int:
        """This process's id; answers once the engine is built."""
        return os.getpid()
