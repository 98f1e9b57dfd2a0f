"""A teacher on a server of its own: its log-probabilities of an answer, asked for as soon as the answer is there.

The server is OpenAI-compatible and reports log-probabilities of a prompt, as vLLM does (`prompt_logprobs`). The teacher's k
likeliest tokens at each place are events of their own, and all other tokens are one more.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import torch
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_exponential
from torch import Tensor

from opd.errors import RunError, UnusableInput
from opd.experiment.sections import Teacher
from opd.inputs.tokenizers import PROBES
from opd.rollout.rows import IDS, LOG_PROBS

logger = logging.getLogger(__name__)

KEY_VARIABLE = "OPD_TEACHER_API_KEY"
MAX_IN_FLIGHT = 32  # of a rollout process: the server batches by itself
TIMEOUT_S = 300.0  # of one request
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_TROUBLES = (aiohttp.ClientError, TimeoutError, OSError)


class TeacherUnreachable(RunError):
    """A served teacher without an answer for longer than `teacher.wait_s`: the attempt ends, and the next one resumes."""


class ServedTeacher:
    """The client of one teacher's replicas in one event loop.

    Args:
        teacher: with `url`.
    """

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._session: aiohttp.ClientSession | None = None
        self._free = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._num_asked = 0

    async def read(self, prompt: Sequence[int], response: Sequence[int]) -> dict[str, Tensor]:
        """Return the columns `IDS` and `LOG_PROBS` of a row: events of each token of its response.

        Raises:
            TeacherUnreachable: no replica has answered in time.
            UnusableInput: the server refuses the request, or reports something else.
        """
        body = {
            "prompt": [*prompt, *response],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self._teacher.top_k,
        }
        async with self._free:
            found = await self._ask("/v1/completions", body)
        try:
            places = found["choices"][0]["prompt_logprobs"][len(prompt) : len(prompt) + len(response)]
            # On a thread: thousands of places would keep other answers waiting.
            return await asyncio.to_thread(_events, places, self._teacher.top_k, len(response))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnusableInput(
                "teacher.url",
                f"the server's answer has no `prompt_logprobs` of {self._teacher.top_k} tokens a place "
                f"({type(error).__name__}: {error}); vLLM reports them, started with --max-logprobs {self._teacher.top_k}",
            ) from error

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
                "teacher.path",
                f"{self._teacher.path} is no model of {self._teacher.url[0]}, which serves {names}; "
                "name one of them (vLLM's --served-model-name gives a model another name)",
            )
        for text in PROBES:
            ours = tokenizer.encode(text, add_special_tokens=False)
            found = await self._ask("/tokenize", {"prompt": text, "add_special_tokens": False})
            if found.get("tokens") != ours:
                raise UnusableInput(
                    "teacher.url",
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

    async def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a replica's answer; another replica is asked after one that does not answer."""
        wait_s = self._teacher.wait_s
        retrying = AsyncRetrying(
            stop=stop_after_delay(wait_s),
            wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            retry=retry_if_exception_type(_TROUBLES),
            before_sleep=_tell,
            reraise=True,
        )
        try:
            return await retrying(self._once, path, body)
        except _TROUBLES as error:
            trouble = f"{type(error).__name__}: {error}"
            raise TeacherUnreachable(f"teacher.url: no answer for {wait_s:g} s (teacher.wait_s): {trouble}") from error

    async def _once(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Ask the replica whose turn it is."""
        url = self._teacher.url[self._num_asked % len(self._teacher.url)].removesuffix("/v1") + path
        self._num_asked += 1
        if self._session is None:
            key = os.environ.get(KEY_VARIABLE)
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        asked = None if body is None else {"model": self._teacher.path, **body}
        async with self._session.request("GET" if body is None else "POST", url, json=asked) as answer:
            if answer.status in _BUSY:
                raise aiohttp.ClientError(f"{url}: status {answer.status}: {(await answer.text())[:200]}")
            if answer.status != 200:
                text = (await answer.text())[:500]
                raise UnusableInput("teacher.url", f"{url} answers with status {answer.status}: {text}")
            found: dict[str, Any] = await answer.json()
            return found


def _tell(state: RetryCallState) -> None:
    assert state.outcome is not None
    logger.warning("the served teacher does not answer, asked again: %s", state.outcome.exception())


def check_served(teacher: Teacher, tokenizer: Any) -> None:
    """Call `ServedTeacher.check` where no event loop runs."""

    async def check() -> None:
        client = ServedTeacher(teacher)
        try:
            await client.check(tokenizer)
        finally:
            await client.close()

    asyncio.run(check())


def _events(places: Sequence[Mapping[str, Any]], top_k: int, num: int) -> dict[str, Tensor]:
    """Return the columns of `num` places, each {token id: {logprob, rank}} with the likeliest tokens and the given one."""
    if len(places) != num:
        raise ValueError(f"{len(places)} places of {num}")
    ids, log_probs = list[list[int]](), list[list[float]]()
    for place in places:
        best = sorted((found["rank"], int(token), found["logprob"]) for token, found in place.items())[:top_k]
        if len(best) < top_k:
            raise ValueError(f"{len(best)} tokens at a place")
        ids.append([token for _, token, _ in best])
        log_probs.append([log_prob for *_, log_prob in best])
    return {IDS: torch.tensor(ids, dtype=torch.int32), LOG_PROBS: torch.tensor(log_probs, dtype=torch.float32)}
