"""Tools of the user's own (`agent.tool_config_path`, verl's BaseTool) and verl's tool-call syntaxes, as our protocols."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.function_tool import FunctionTool, normalize_function_tool_return
from verl.tools.schemas import OpenAIFunctionToolSchema

from opd.agent.parsing import CallParser, HermesParser, ToolCall, call_from_parts
from opd.agent.tools import ToolReply

logger = logging.getLogger(__name__)

HERMES = "hermes"


class VerlTools:
    """One conversation's instances of verl tools, each made at its first call and kept to the end.

    verl's own loop makes a new instance for every call, so that a tool forgets what it did a turn before. A tool runs in
    this process: one that awaits is stopped at the deadline, one that blocks blocks the batch. Ours run in processes.
    """

    def __init__(self, tools: Mapping[str, Any], create_kwargs: Mapping[str, Any], timeout_s: float):
        self._tools = tools
        self._create_kwargs = create_kwargs
        self._timeout_s = timeout_s
        self._instances: dict[str, str] = {}

    @property
    def names(self) -> Collection[str]:
        return self._tools.keys()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run one call; an error is a reply."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                return ToolReply(await self._run(name, dict(arguments)), seconds=time.perf_counter() - started)
        except TimeoutError:
            error = f"Error: {name} did not answer within {self._timeout_s:g} s"
        except Exception as raised:  # noqa: BLE001 - a user's tool may raise anything; the model reads it and continues
            error = f"Error: {name} failed: {raised}"
        return ToolReply(error, error, time.perf_counter() - started)

    async def _run(self, name: str, arguments: dict[str, Any]) -> str:
        tool = self._tools[name]
        if isinstance(tool, FunctionTool):
            response, _, _ = normalize_function_tool_return(await tool.call(arguments))
        else:
            if name not in self._instances:
                kwargs = dict(self._create_kwargs.get(name, {}))
                self._instances[name], _ = await tool.create(create_kwargs=kwargs.get("create_kwargs", {}))
            response, _, _ = await tool.execute(self._instances[name], arguments)
        if response.image or response.video:
            raise ValueError("the tool answered with an image or a video; conversations here are text only")
        return response.text or ""

    async def release(self) -> None:
        """Give the instances back."""
        for name, instance in self._instances.items():
            await self._tools[name].release(instance)


class VerlParser:
    """One of verl's parsers; calls that it began but could not read are returned as unreadable instead of dropped."""

    def __init__(self, name: str, tokenizer: Any, schemas: Sequence[Mapping[str, Any]]):
        self._name = name
        self._parser = ToolParser.get_tool_parser(name, tokenizer)
        self._tools = [OpenAIFunctionToolSchema.model_validate(schema) for schema in schemas]
        self.opening: str | None = getattr(self._parser, "tool_call_start_token", None)
        self.stop_token_ids: Sequence[int] = tuple(self._parser.stop_token_ids)

    async def parse(self, text: str, token_ids: Sequence[int]) -> list[ToolCall]:
        unreadable = ToolCall(problem=f"a call is not in the format {self._name}")
        try:
            _, found = await self._parser.extract_tool_calls(list(token_ids), self._tools)
        except Exception as error:  # noqa: BLE001 - a parser of verl's that stumbles over what the model wrote
            logger.warning("verl's parser %s raised %s: %s", self._name, type(error).__name__, error)
            return [unreadable]
        calls = [call_from_parts(call.name, call.arguments, call.tool_call_id) for call in found]
        begun = text.count(self.opening) if self.opening else 0
        return calls + [unreadable] * (begun - len(calls))


def call_parser(name: str, tokenizer: Any, schemas: Sequence[Mapping[str, Any]]) -> CallParser:
    """Return the parser of a tool-call syntax.

    Raises:
        ValueError: verl has no parser of that name.
    """
    if name == HERMES:
        return HermesParser()
    if name not in ToolParser._registry:
        raise ValueError(
            f"agent.tool_format={name!r}: must be one of {', '.join(sorted(ToolParser._registry))} (verl's parsers)"
        )
    return VerlParser(name, tokenizer, schemas)
