"""Environments in which an agent acts: worlds, tools, tasks and rewards, one folder each.

Each registers its `opd.agent.Environment` by an entry point; `opd` imports none of them.
"""
