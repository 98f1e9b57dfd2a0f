"""Processes that can be killed: code that may hang or crash runs outside the trainer's process.

`pool` is the parent's side, `serving` the child's. Scorers (`opd.rewards`) and tools (`opd.agent.tool_pool`) run in such a pool.
"""
