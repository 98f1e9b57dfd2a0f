"""Counts over conversations with tools, added up over batches and processes, and turned into metrics once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from opd.agent.dialogue import ENDINGS, UNREADABLE, Dialogue

UNKNOWN_TOOL = "(unknown)"


@dataclass(kw_only=True)
class ToolCounts:
    """Calls of one tool."""

    num_calls: int = 0
    num_run: int = 0
    """Those that reached the tool: it exists, the call could be read and was within its turn's limit."""
    num_errors: int = 0
    total_s: float = 0.0
    """Over the calls that were run."""
    max_s: float = 0.0

    def add(self, other: ToolCounts) -> None:
        self.num_calls += other.num_calls
        self.num_run += other.num_run
        self.num_errors += other.num_errors
        self.total_s += other.total_s
        self.max_s = max(self.max_s, other.max_s)


@dataclass(kw_only=True)
class AgentCounts:
    """Events of a number of conversations."""

    num_dialogues: int = 0
    tools: dict[str, ToolCounts] = field(default_factory=lambda: defaultdict(ToolCounts))
    endings: Counter[str] = field(default_factory=Counter)
    num_surplus_calls: int = 0
    num_malformed_calls: int = 0
    num_truncated_replies: int = 0
    num_markers_broken: int = 0
    num_llm_tokens: int = 0
    num_tool_tokens: int = 0
    total_turns: int = 0
    min_turns: int | None = None
    max_turns: int = 0

    @classmethod
    def of(cls, dialogue: Dialogue) -> AgentCounts:
        """Return the counts of one conversation."""
        turns = num_turns(dialogue)
        counts = cls(
            num_dialogues=1, total_turns=turns, min_turns=turns, max_turns=turns,
            num_markers_broken=dialogue.num_markers_broken,
            # By the turns, never by the mask: the monitor tells a wrong mask by these.
            num_llm_tokens=sum(turn.num_tokens for turn in dialogue.turns),
            num_tool_tokens=sum(turn.num_reply_tokens for turn in dialogue.turns),
        )  # fmt: skip
        counts.endings[dialogue.ending] += 1
        for call in (call for turn in dialogue.turns for call in turn.calls):
            counts.num_surplus_calls += call.surplus
            counts.num_malformed_calls += call.malformed
            counts.num_truncated_replies += call.truncated
            name = call.name if call.known or call.name == UNREADABLE else UNKNOWN_TOOL
            one = ToolCounts(
                num_calls=1, num_run=int(not call.problem), num_errors=int(call.error), total_s=call.seconds,
                max_s=call.seconds,
            )  # fmt: skip
            counts.tools[name].add(one)
        return counts

    def add(self, other: AgentCounts) -> None:
        """Add another's counts to these."""
        for name, tool in other.tools.items():
            self.tools[name].add(tool)
        self.endings.update(other.endings)
        if other.min_turns is not None:
            self.min_turns = other.min_turns if self.min_turns is None else min(self.min_turns, other.min_turns)
        self.max_turns = max(self.max_turns, other.max_turns)
        for name in (
            "num_dialogues", "total_turns", "num_surplus_calls", "num_malformed_calls", "num_truncated_replies",
            "num_markers_broken", "num_llm_tokens", "num_tool_tokens",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def metrics(self) -> dict[str, float]:
        """Return `agent/*`, `tool_mask/*` and `num_turns/*`; nothing where there was no conversation with tools."""
        if not self.num_dialogues:
            return {}
        out = {
            "agent/surplus_calls": self.num_surplus_calls,
            "agent/malformed_calls": self.num_malformed_calls,
            "agent/truncated_replies": self.num_truncated_replies,
            "agent/markers_broken": self.num_markers_broken,
            **{f"agent/ended/{ending}": self.endings[ending] for ending in ENDINGS},
            "tool_mask/has_agent_mask": self.num_tool_tokens > 0,
            "tool_mask/llm_tokens": self.num_llm_tokens,
            "tool_mask/tool_tokens": self.num_tool_tokens,
            "tool_mask/tool_ratio": self.num_tool_tokens / max(self.num_llm_tokens + self.num_tool_tokens, 1),
            "num_turns/min": self.min_turns or 0,
            "num_turns/max": self.max_turns,
            "num_turns/mean": self.total_turns / self.num_dialogues,
        }
        for name, tool in sorted(self.tools.items()):
            out |= {
                f"agent/tool/{name}/calls": tool.num_calls,
                f"agent/tool/{name}/errors": tool.num_errors,
                f"agent/tool/{name}/seconds_mean": tool.total_s / max(tool.num_run, 1),
                f"agent/tool/{name}/seconds_max": tool.max_s,
            }
        return {name: float(value) for name, value in out.items()}


def num_turns(dialogue: Dialogue) -> int:
    """Return verl's count: the question, each turn of the model, each round of tool replies."""
    return 1 + len(dialogue.turns) + sum(turn.num_reply_tokens > 0 for turn in dialogue.turns)
