"""A teacher on a server of its own: its log-probabilities of an answer, asked for as soon as the answer is there.

The server is OpenAI-compatible and reports log-probabilities of a prompt, as vLLM does (`prompt_logprobs`). The teacher's k
likeliest tokens at each place are events of their own, and all other tokens are one more. The server reports the given token too.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import torch
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential
from torch import Tensor
from verl.workers.rollout.replica import TokenOutput

from opd.errors import RunError, UnusableInput
from opd.experiment import EvalSpec, OpdAgentSpec, OpdSpec
from opd.experiment.kinds import AnyRunSpec
from opd.experiment.sections import Teacher
from opd.inputs.tokenizers import PROBES
from opd.rollout.rows import IDS, LOG_PROBS

logger = logging.getLogger(__name__)

KEY_VARIABLE = "OPD_TEACHER_API_KEY"
MAX_IN_FLIGHT = 32  # of a rollout process: the server batches by itself
TIMEOUT_S = 300.0  # of one request
ANSWER_TIMEOUT_S = 3600.0  # of one answer, which the server sends when it is complete
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_TROUBLES = (aiohttp.ClientError, TimeoutError, OSError)


class TeacherUnreachable(RunError):
    """A served teacher without an answer for longer than `teacher.wait_s`: the attempt ends, and the next one resumes."""


class ServedTeacher:
    """The client of one teacher's replicas in one event loop.

    Args:
        key: of the teacher. teacher: with `url`.
        num_events: likeliest tokens that it reports at each place.
        num_answers: that it writes at once.
    """

    def __init__(self, key: str, teacher: Teacher, num_events: int, num_answers: int = 1) -> None:
        self._key, self._teacher, self.num_events = key, teacher, num_events
        self._session: aiohttp.ClientSession | None = None
        self._free, self._may_write = asyncio.Semaphore(MAX_IN_FLIGHT), asyncio.Semaphore(num_answers)
        self._num_asked = 0
        self.unread = columns_of_events([], [], num_events)
        """Columns of a row that another teacher reads."""

    async def read(self, prompt: Sequence[int], response: Sequence[int]) -> dict[str, Tensor]:
        """Return the columns `IDS` and `LOG_PROBS` of a row.

        Raises:
            TeacherUnreachable: no replica has answered in time.
            UnusableInput: the server refuses the request, or reports something else.
        """
        body = {
            "prompt": [*prompt, *response],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self.num_events,
        }
        async with self._free:
            found = await self._ask("/v1/completions", body)
        try:
            places = found["choices"][0]["prompt_logprobs"][len(prompt) : len(prompt) + len(response)]
            # On a thread: thousands of places would keep other answers waiting.
            return await asyncio.to_thread(columns_of_events, places, response, self.num_events)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnusableInput(
                f"{self._key}.url",
                f"the server's answer has no `prompt_logprobs` of the given token and {self.num_events} more a place "
                f"({type(error).__name__}: {error}); vLLM reports them, started with --max-logprobs {self.num_events}",
            ) from error

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **_: Any
    ) -> TokenOutput:
        """Return the server's answer to a prompt, as verl's client returns a rollout server's.

        Raises:
            TeacherUnreachable, UnusableInput: as of `read`.
        """
        asked = {"prompt": list(prompt_ids), "return_token_ids": True, "repetition_penalty": 1.0}
        asked |= {name: value for name, value in sampling_params.items() if name != "logprobs"}
        async with self._may_write:
            found = await self._ask("/v1/completions", asked, ANSWER_TIMEOUT_S)
        try:
            return TokenOutput(token_ids=found["choices"][0]["token_ids"])
        except (LookupError, TypeError, ValueError) as error:
            rule = "the server's answer has no `token_ids`; vLLM reports them from 0.10.2 on"
            raise UnusableInput(f"{self._key}.url", rule) from error

    async def check(self, tokenizer: Any) -> None:
        """Refuse a server that lacks the model, cuts text otherwise than `tokenizer`, or reports fewer tokens.

        Raises:
            UnusableInput: the text says which of them, and the fix.
            TeacherUnreachable: as of `read`.
        """
        listed = [one.get("id") for one in (await self._ask("/v1/models", None)).get("data", [])]
        if self._teacher.path not in listed:
            names = ", ".join(map(str, listed)) or "none"
            raise UnusableInput(
                f"{self._key}.path",
                f"{self._teacher.path} is no model of {self._teacher.url[0]}, which serves {names}; "
                "name one of them (vLLM's --served-model-name gives a model another name)",
            )
        for text in PROBES:
            ours = tokenizer.encode(text, add_special_tokens=False)
            found = await self._ask("/tokenize", {"prompt": text, "add_special_tokens": False})
            if found.get("tokens") != ours:
                raise UnusableInput(
                    f"{self._key}.url",
                    f"the server's tokenizer makes {len(found.get('tokens') or [])} tokens of {text[:40]!r}, the "
                    f"student's {len(ours)}, or others. Both must have one tokenizer: serve a teacher of the student's family",
                )
        ids = tokenizer.encode(PROBES[0], add_special_tokens=False)
        await self.read(ids[:4], ids[4:])

    async def close(self) -> None:
        """Close the connections; the next request opens others."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, path: str, body: Mapping[str, Any] | None, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return a replica's answer; another replica is asked after one that does not answer."""
        wait_s, failed_s = self._teacher.wait_s, list[float]()

        def is_over(state: RetryCallState) -> bool:  # since the first failure: an answer may take longer than that
            failed_s.append(time.monotonic())
            return failed_s[-1] - failed_s[0] >= wait_s

        retrying = AsyncRetrying(
            stop=is_over,
            wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            retry=retry_if_exception_type(_TROUBLES),
            before_sleep=_tell,
            reraise=True,
        )
        try:
            return await retrying(self._once, path, body, timeout_s)
        except _TROUBLES as error:
            trouble = f"{type(error).__name__}: {error}"
            raise TeacherUnreachable(
                f"{self._key}.url: no answer for {wait_s:g} s ({self._key}.wait_s): {trouble}"
            ) from error

    async def _once(self, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """Ask the replica whose turn it is."""
        url = self._teacher.url[self._num_asked % len(self._teacher.url)].removesuffix("/v1") + path
        self._num_asked += 1
        if self._session is None:
            key = os.environ.get(KEY_VARIABLE)
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        asked = None if body is None else {"model": self._teacher.path, **body}
        method, timeout = "GET" if body is None else "POST", aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(method, url, json=asked, timeout=timeout) as answer:
            if answer.status in _BUSY:
                raise aiohttp.ClientError(f"{url}: status {answer.status}: {(await answer.text())[:200]}")
            if answer.status != 200:
                text = (await answer.text())[:500]
                raise UnusableInput(f"{self._key}.url", f"{url} answers with status {answer.status}: {text}")
            found: dict[str, Any] = await answer.json()
            return found


def _tell(state: RetryCallState) -> None:
    assert state.outcome is not None
    logger.warning("the served teacher does not answer, asked again: %s", state.outcome.exception())


def events_per_place(spec: OpdSpec | OpdAgentSpec) -> int:
    """Return the likeliest tokens that served teachers report; 0 if the given token's log-probability is enough."""
    opd = spec.opd
    kinds = {stage.loss_type or opd.loss_type for stage in opd.stages} or {opd.loss_type}
    if kinds == {"sampled_reverse_kl"} and not opd.importance.tokens.needs_teacher:
        return 0
    return next(iter(spec.served_teachers.values())).top_k  # a rule: all have the same


def clients(spec: AnyRunSpec) -> dict[int, ServedTeacher]:
    """Return the clients of a run's served teachers by the teachers' numbers."""
    if isinstance(spec, EvalSpec) and (only := spec.teacher) is not None:
        num_events = only.top_k if spec.eval.save_generations else 0
        return {0: ServedTeacher("teacher", only, num_events, spec.rollout.max_num_seqs)}
    if not isinstance(spec, OpdSpec | OpdAgentSpec):
        return {}
    teachers = enumerate(spec.all_teachers.items())
    return {number: ServedTeacher(key, one, events_per_place(spec)) for number, (key, one) in teachers if one.url}


def check_served(spec: AnyRunSpec, tokenizer: Any) -> None:
    """Call `ServedTeacher.check` of each served teacher where no event loop runs."""

    async def check() -> None:
        for client in clients(spec).values():
            try:
                await client.check(tokenizer)
            finally:
                await client.close()

    asyncio.run(check())


def columns_of_events(places: Sequence[Mapping[str, Any]], tokens: Sequence[int], num_events: int) -> dict[str, Tensor]:
    """Return the columns of a response's tokens, by the places {token id: {logprob, rank}}; none for a row that is not read."""
    ids, log_probs = list[list[int]](), list[list[float]]()
    for place, token in zip(places, tokens, strict=True):
        best = sorted((found["rank"], int(one), found["logprob"]) for one, found in place.items())[:num_events]
        if len(best) < num_events:
            raise ValueError(f"{len(best)} tokens at a place")
        ids.append([token, *(one for _, one, _ in best)])
        log_probs.append([place[str(token)]["logprob"], *(log_prob for *_, log_prob in best)])
    made = {IDS: torch.tensor(ids, dtype=torch.int32), LOG_PROBS: torch.tensor(log_probs, dtype=torch.float32)}
    return {name: values.view(-1, 1 + num_events) for name, values in made.items()}
