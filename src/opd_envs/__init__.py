"""Environments in which an agent acts: worlds, tools, tasks and rewards, one folder each.

Each registers its `opd.agent.Environment` by an entry point. `opd` imports none of them, and no environment another.
"""

from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
