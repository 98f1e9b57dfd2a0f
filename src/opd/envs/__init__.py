"""Environments in which an agent acts: worlds, tools, tasks and rewards, one folder each.

The loop that plays a conversation in any of them is `opd.agent`.
"""
