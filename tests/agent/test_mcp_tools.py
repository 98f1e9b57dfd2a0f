"""Tools of an MCP server: listed once, called in tool processes, with the limits of other tools."""

import asyncio
import json
import os
import sys
import time
from contextlib import closing

import psutil
import pytest

from opd.agent.environments import NoEnvironment, load_environment, tool_schemas
from opd.agent.tool_pool import MAX_REPLY_CHARS, ToolPool

pytest.importorskip("mcp", reason="comes with vLLM")
SERVER = """
import os, time
from mcp.server import MCPServer

server = MCPServer("prices")

@server.tool()
def price(city: str, nights: list[int]) -> dict:
    "The price of some nights."
    return {"city": city, "sum": sum(nights), "pid": os.getpid()}

server.add_tool(lambda: "x" * 1_000_000, name="long")
server.add_tool(lambda: time.sleep(60), name="hang")
server.add_tool(lambda: os._exit(1), name="die")
server.run()
"""


def test_a_servers_tools_are_described_called_and_bounded(tmp_path):
    (script := tmp_path / "server.py").write_text(SERVER)
    toolset = f"mcp:env PYTHONPATH={os.environ.get('PYTHONPATH', '')} {sys.executable} {script}"
    price = next(one["function"] for one in tool_schemas(toolset) if one["function"]["name"] == "price")
    assert price["description"] == "The price of some nights."
    assert price["parameters"]["properties"]["nights"]["items"] == {"type": "integer"}

    async def replies():
        right = {"city": "静州", "nights": [40, 2]}
        calls = [("price", right)] * 2 + [("price", {}), ("long", {}), ("hang", {}), ("price", right), ("die", {})]
        with closing(ToolPool("", num_processes=1, timeout_s=5, toolset=toolset)) as pool:
            return [await pool.call(*one) for one in calls]

    first, again, wrong, long, hung, after, died = asyncio.run(replies())
    read = [json.loads(one.text) for one in (first, again, after)]
    assert {(one["city"], one["sum"]) for one in read} == {("静州", 42)}
    assert read[0]["pid"] == read[1]["pid"] != read[2]["pid"], "a server that hung is replaced"
    assert "nights" in wrong.text
    assert len(long.text) == MAX_REPLY_CHARS
    assert [one.error for one in (first, wrong, hung, died)] == [None, "bad_arguments", "timeout", "crashed"]
    time.sleep(0.5)
    left = [one for one in psutil.process_iter(["cmdline"]) if str(script) in (one.info["cmdline"] or ())]
    assert left == [], "servers end with their tool processes"
    with pytest.raises(NoEnvironment, match=r"= mcp:no-such-command: .*the server does not start a session"):
        load_environment("mcp:no-such-command")
