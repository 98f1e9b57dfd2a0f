"""Conversations with tools: the loop between model and tools, its limits, and the pool that runs the tools.

Worlds are packages of their own: each registers an `Environment`.
"""

from opd.agent.environments import Environment, load_environment
from opd.agent.tools import Arguments, BadArguments, Tool

__all__ = ["Arguments", "BadArguments", "Environment", "Tool", "load_environment"]
