"""Agent programs that others wrote: an OpenAI-compatible address of the student, and a record of each conversation.

A program (`agent.program`) runs in a thread of the rollout's process. Each conversation has an address of 127.0.0.1 and a key
of its own. A request adds messages to the record, whose tokens are never made a second time.
"""

import asyncio
import copy
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from aiohttp import web

from opd.agent.conversation import call_id
from opd.agent.dialogue import (
    ANSWERED,
    ASSISTANT_TURNS,
    NO_ROOM_FOR_REPLY,
    CallRecord,
    Dialogue,
    DialogueRunner,
    Generate,
)
from opd.agent.parsing import ToolCall
from opd.agent.tools import shown
from opd.data.messages import plain, with_text_arguments

MODEL = "student"
MAX_REQUEST_BYTES = 1 << 28
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "n": (None, 1),
    "stop": (None, []),
    "logprobs": (None, False),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
}
"""Values of the keys that would change what an answer is. Sampling parameters of a request are not read: the run's hold."""
Program = Callable[..., Any]
"""Takes `base_url`, `api_key`, `model` and `row`; returns a score, a dict with one as a reward function does, or None."""
RunnerOf = Callable[[Sequence[Mapping[str, Any]]], DialogueRunner]


class Refused(ValueError):
    """A request that does not extend its conversation's record; the conversation fails."""


class Full(Exception):
    """A limit has ended the conversation; its record stays."""


class ProgramFailed(Exception):
    """A program that raised, asked nothing, took too long, or did not await an answer."""


class Recording:
    """One conversation, as its program asks for it.

    Args:
        runner_of: makes the runner of a conversation with these tools.
        generate: asks the rollout server.
        idle_s: longest time between an answer and the next request.
    """

    def __init__(self, runner_of: RunnerOf, generate: Generate, idle_s: float) -> None:
        self._runner_of, self._generate, self.idle_s = runner_of, generate, idle_s
        self.key = uuid4().hex
        self.dialogue: Dialogue | None = None
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._known: list[dict[str, Any]] = []  # the messages of the record, as `_compared`
        self._calls: dict[str, ToolCall] = {}  # of the last turn, by the ids that the program sees
        self.is_asked, self._since = False, time.monotonic()

    @property
    def left_s(self) -> float:
        """Time in which the program has to ask again, or to return."""
        return self.idle_s if self.is_asked else self._since + self.idle_s - time.monotonic()

    async def handle(self, request: web.Request) -> web.Response:
        """Answer POST /v1/chat/completions."""
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "the API key is not this conversation's")
        try:
            return web.json_response(await self.complete(await request.json()))
        except Full as full:
            return _error(400, f"the maximum context length is reached: {full}", "context_length_exceeded")
        except Exception as error:  # noqa: BLE001  the conversation ends by any error
            if not self.fault.done():
                self.fault.set_exception(error)
            return _error(400, f"{type(error).__name__}: {error}")

    async def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's next turn as a chat completion.

        Raises:
            Refused, Full: there is none.
        """
        if self.is_asked:
            raise Refused("a second request came before the first was answered: a conversation has one at a time")
        for key, allowed in _ALLOWED.items():
            if request.get(key) not in allowed:
                known = ", ".join(json.dumps(value) for value in allowed)
                raise Refused(f"{key} = {json.dumps(request[key])}: must be one of {known}")
        self.is_asked = True
        try:
            return await self._answer(request, plain(request["messages"]), request.get("tools") or [])
        finally:
            self.is_asked, self._since = False, time.monotonic()

    async def _answer(self, request: Mapping[str, Any], messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        if self.dialogue is None:
            self._tools, self._runner = tools, self._runner_of(tools)
            self.dialogue = self._runner.begin(messages)
        else:
            self._extend(self.dialogue, messages, tools)
        dialogue, runner = self.dialogue, self._runner
        num_before, num_turns = len(dialogue.ids), len(dialogue.turns)
        most = request.get("max_completion_tokens") or request.get("max_tokens")
        ending, calls = await runner.take_turn(dialogue, self._generate, most)
        dialogue.ending = ending or ANSWERED
        if len(dialogue.turns) == num_turns:
            raise Full(f"the server ended the turn before its first token: {ending}")
        if not tools or request.get("tool_choice") == "none" or any(call.problem for call in calls):
            calls = []  # an unreadable call is text, as other servers have it
        self._calls = {call_id(num_turns, number): call for number, call in enumerate(calls)}
        message: dict[str, Any] = {"role": "assistant", "content": self._said(dialogue)}
        if calls:
            made = {id_: {"name": call.name, "arguments": call.arguments} for id_, call in self._calls.items()}
            message["tool_calls"] = [{"id": id_, "type": "function", "function": one} for id_, one in made.items()]
        [sent] = with_text_arguments([message])
        self._known = [_compared(one) for one in (*messages, message)]
        reason = "length" if ending else "tool_calls" if calls else "stop"
        num_new = len(dialogue.ids) - num_before
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": MODEL,
            "choices": [{"index": 0, "message": sent, "finish_reason": reason, "logprobs": None}],
            "usage": {"prompt_tokens": num_before, "completion_tokens": num_new, "total_tokens": num_before + num_new},
        }

    def _said(self, dialogue: Dialogue) -> str:
        """Return the last turn's text without thoughts, calls and end, for the program alone."""
        text = self._runner.spoken(dialogue.turns[-1].text)
        if dialogue.ending == ANSWERED:
            text = text.removesuffix(self._runner.text_of(dialogue.response_ids[-1:]))
        if self._calls and self._runner.parser.opening:
            text = text.partition(self._runner.parser.opening)[0]
        return text.strip()

    def _extend(self, dialogue: Dialogue, messages: list[Any], tools: list[Any]) -> None:
        """Add what follows the last answer: a reply to each of its calls, then messages of the user."""
        if dialogue.ending != ANSWERED:
            raise Full(f"the conversation has ended: {dialogue.ending}")
        if tools != self._tools:
            raise Refused(
                "tools: must be the tools of the conversation's first request; tool_choice none asks for text"
            )
        for place, (known, given) in enumerate(zip(self._known, map(_compared, messages), strict=False)):
            if key := next((key for key in known if known[key] != given[key]), None):
                asked_for = f"messages[{place}].{key} = {shown(given[key])}"
                raise Refused(f"{asked_for}: must be {shown(known[key])}, as the conversation has it")
        added = messages[len(self._known) :]
        num, roles = len(self._calls), [one["role"] for one in added]
        asked, replies = added[num:], {one.get("tool_call_id"): one["content"] for one in added[:num]}
        if not added or replies.keys() != self._calls.keys() or roles != ["tool"] * num + ["user"] * len(asked):
            rule = f"must be one of tool for each of its {num} calls, then user"
            fix = "a request that was answered cannot be sent again"
            raise Refused(
                f"messages: after the last answer come the roles {', '.join(roles) or '(none)'}: {rule}; {fix}"
            )
        if len(dialogue.turns) >= self._runner.limits.max_assistant_turns:
            dialogue.ending = ASSISTANT_TURNS
            raise Full(f"the conversation has {len(dialogue.turns)} turns, agent.max_assistant_turns")
        offered = {tool["function"]["name"] for tool in tools}
        seconds, records, num_broken = time.monotonic() - self._since, [], 0
        for id_, call in self._calls.items():
            text, truncated, broken = self._runner.shown(replies[id_])
            num_broken += broken
            records.append(
                CallRecord(name=call.name, arguments=call.arguments, problem="", reply=text, error=False,
                           seconds=seconds, truncated=truncated, known=call.name in offered)
            )  # fmt: skip
        cleaned = [self._runner.conversation.clean(one["content"]) for one in asked]
        num_broken += sum(broken for _, broken in cleaned)
        asked = [one | {"content": text} for one, (text, _) in zip(asked, cleaned, strict=True)]
        if not self._runner.reply(dialogue, list(self._calls.values()), records, num_broken, asked):
            dialogue.ending = NO_ROOM_FOR_REPLY
            raise Full("the messages leave no room for an answer in data.max_response_length")


def _compared(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes two messages of `plain` the same."""
    calls = [[one.get("id"), *map(one["function"].get, ("name", "arguments"))] for one in message.get("tool_calls", ())]
    return {key: message.get(key) for key in ("role", "content", "tool_call_id")} | {"tool_calls": calls}


async def hold(
    program: Program, row: Mapping[str, Any], *, generate: Generate, runner_of: RunnerOf, idle_s: float
) -> tuple[Dialogue, Any]:
    """Have a program hold one conversation about a row; return it with what the program returned.

    A program that raises after a limit has ended the conversation returned nothing.

    Raises:
        ProgramFailed: see there.
        Refused: a request did not extend the conversation; or any error of the server.
    """
    recording = Recording(runner_of, generate, idle_s)
    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.router.add_post("/v1/chat/completions", recording.handle)
    address = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await address.setup()
    try:
        await web.TCPSite(address, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{address.addresses[0][1]}/v1"
        arguments = {"base_url": url, "api_key": recording.key, "model": MODEL, "row": copy.deepcopy(dict(row))}
        returned = await _returned(program, arguments, recording)
    except ProgramFailed:
        if recording.dialogue is None or recording.dialogue.ending == ANSWERED:
            raise
        returned = None
    finally:
        recording.fault.cancel()
        await address.cleanup()
    if recording.dialogue is None:
        raise ProgramFailed("agent.program returned before it asked the model anything")
    return recording.dialogue, returned


async def _returned(program: Program, arguments: Mapping[str, Any], recording: Recording) -> Any:
    """Return what a program returns; a thread that is given up ends by the error of its next request."""
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(program, arguments, done), name="agent program", daemon=True).start()
    returned = asyncio.wrap_future(done)
    try:
        while not returned.done():
            await asyncio.wait({returned, recording.fault}, timeout=recording.left_s, return_when="FIRST_COMPLETED")
            if recording.fault.done():
                recording.fault.result()
            if recording.left_s <= 0 and not returned.done():
                rule = "raise agent.call_timeout_s, which bounds all that a program does between two answers"
                raise ProgramFailed(f"agent.program neither asked nor returned in {recording.idle_s:g} s: {rule}")
        found = returned.result()
        if recording.is_asked:
            raise ProgramFailed("agent.program returned before its last request was answered: await the answer")
        return found
    finally:
        returned.cancel()


def _run(program: Program, arguments: Mapping[str, Any], done: Future[Any]) -> None:
    """Call a program in its thread; an async one gets an event loop of its own."""
    try:
        returned = program(**arguments)
        done.set_result(asyncio.run(returned) if inspect.iscoroutine(returned) else returned)
    except BaseException as error:  # noqa: BLE001  a program may raise anything, SystemExit too
        failed = ProgramFailed(f"agent.program raised {type(error).__name__}: {error}")
        failed.__cause__ = error
        done.set_exception(failed)


def _error(status: int, message: str, code: str = "invalid_request_error") -> web.Response:
    """Return an error that no client sends again."""
    return web.json_response({"error": {"message": message, "type": code, "code": code}}, status=status)
