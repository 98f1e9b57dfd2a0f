"""The benchmark's tools described in Chinese: `agent.toolset: opd.envs.deepplanning.zh`."""

from opd.envs.deepplanning.database import open_database, verify_database
from opd.envs.deepplanning.tools import tools_in

NEEDS_CASE = True
TOOLS = tools_in("zh")

__all__ = ["NEEDS_CASE", "TOOLS", "open_database", "verify_database"]
