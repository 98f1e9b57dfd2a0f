"""The benchmark's tools described in English: `agent.toolset: opd.envs.deepplanning.en`."""

from opd.envs.deepplanning.database import open_database, verify_database
from opd.envs.deepplanning.tools import tools_in

NEEDS_CASE = True
TOOLS = tools_in("en")

__all__ = ["NEEDS_CASE", "TOOLS", "open_database", "verify_database"]
