"""Processes that can be killed: how code that may hang or crash runs beside the trainer.

The pools built on it are `opd.rewards.pool` (scorers) and `opd.agent.tool_pool` (tools).
"""
