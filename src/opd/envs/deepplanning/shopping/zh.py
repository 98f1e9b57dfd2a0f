"""The benchmark's shopping tools described in Chinese: `agent.toolset: opd.envs.deepplanning.shopping.zh`."""

from opd.envs.deepplanning.database import verify_database
from opd.envs.deepplanning.shopping.catalog import open_database
from opd.envs.deepplanning.shopping.tools import tools_in

KEEPS_STATE = NEEDS_CASE = True
TOOLS = tools_in("zh")

__all__ = ["KEEPS_STATE", "NEEDS_CASE", "TOOLS", "open_database", "verify_database"]
