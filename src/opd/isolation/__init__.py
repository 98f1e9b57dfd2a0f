"""Processes that can be killed: how code that may hang or crash runs beside the trainer.

`pool` is the parent's side and `serving` the child's; built on them are `opd.rewards.pool` (scorers) and `opd.agent.tool_pool`
(tools).
"""
