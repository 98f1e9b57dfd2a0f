"""The default toolset by the name that experiment files and toolsets of your own use: `opd.agent.tools`."""

from opd.agent.toolset import DEFAULT_TOOLSET, BadArguments, Tool, load_toolset, render, tool_schemas
from opd.envs.travel.tools import TOOLS, open_database, verify_database

__all__ = [
    "DEFAULT_TOOLSET",
    "TOOLS",
    "BadArguments",
    "Tool",
    "load_toolset",
    "open_database",
    "render",
    "tool_schemas",
    "verify_database",
]
