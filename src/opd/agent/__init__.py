"""Conversations with tools: the loop between model and tools, their limits, parsing, and the pool that runs tools.

Nothing here knows a task; worlds, tools and rewards are in `opd.envs`.
"""
