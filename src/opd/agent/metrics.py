"""Counts over conversations with tools, added up over batches and processes, and turned into metrics once."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from opd.agent.dialogue import ENDINGS, UNREADABLE, Dialogue

UNKNOWN_TOOL = "(unknown)"
_EVENTS = ("surplus_calls", "malformed_calls", "truncated_replies", "markers_broken")


@dataclass(kw_only=True)
class AgentCounts:
    """Events of a number of conversations."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By the metric's name; of each tool also the calls that were `run`, and their seconds in `total_s`."""
    turns: Counter[int] = field(default_factory=Counter)
    """Conversations by their number of turns."""
    longest_s: dict[str, float] = field(default_factory=dict)
    """Longest call of each tool."""

    @classmethod
    def of(cls, dialogue: Dialogue) -> "AgentCounts":
        """Return the counts of one conversation."""
        counts = cls(turns=Counter([num_turns(dialogue)]))
        sums, longest_s = counts.sums, counts.longest_s
        sums[f"agent/ended/{dialogue.ending}"] = 1
        sums["agent/markers_broken"] = dialogue.num_markers_broken
        # By the turns, never by the mask: the monitor tells a wrong mask by these.
        sums["tool_mask/llm_tokens"] = sum(turn.num_tokens for turn in dialogue.turns)
        sums["tool_mask/tool_tokens"] = sum(turn.num_reply_tokens for turn in dialogue.turns)
        for call in (call for turn in dialogue.turns for call in turn.calls):
            sums["agent/surplus_calls"] += call.surplus
            sums["agent/malformed_calls"] += call.malformed
            sums["agent/truncated_replies"] += call.truncated
            tool = f"agent/tool/{call.name if call.known or call.name == UNREADABLE else UNKNOWN_TOOL}"
            sums[f"{tool}/calls"] += 1
            sums[f"{tool}/errors"] += call.error
            sums[f"{tool}/run"] += not call.problem
            sums[f"{tool}/total_s"] += call.seconds
            longest_s[tool] = max(longest_s.get(tool, 0.0), call.seconds)
        return counts

    def add(self, other: "AgentCounts") -> None:
        """Add another's counts to these."""
        for name, value in other.sums.items():
            self.sums[name] += value
        self.turns.update(other.turns)
        for tool, seconds in other.longest_s.items():
            self.longest_s[tool] = max(self.longest_s.get(tool, 0.0), seconds)

    def metrics(self) -> dict[str, float]:
        """Return `agent/*`, `tool_mask/*` and `num_turns/*`; nothing where there was no conversation with tools."""
        if not self.turns:
            return {}
        num_model, num_tools = self.sums["tool_mask/llm_tokens"], self.sums["tool_mask/tool_tokens"]
        out: dict[str, float] = dict.fromkeys([f"agent/{name}" for name in _EVENTS], 0.0)
        out |= {f"agent/ended/{ending}": 0.0 for ending in ENDINGS} | self.sums
        out |= {
            "tool_mask/has_agent_mask": num_tools > 0,
            "tool_mask/tool_ratio": num_tools / max(num_model + num_tools, 1),
            "num_turns/min": min(self.turns),
            "num_turns/max": max(self.turns),
            "num_turns/mean": sum(num * times for num, times in self.turns.items()) / self.turns.total(),
        }
        for tool, seconds in self.longest_s.items():
            out[f"{tool}/seconds_mean"] = out.pop(f"{tool}/total_s") / max(out.pop(f"{tool}/run"), 1)
            out[f"{tool}/seconds_max"] = seconds
        return {name: float(value) for name, value in sorted(out.items())}


def num_turns(dialogue: Dialogue) -> int:
    """Return verl's count: the question, each turn of the model, each round of tool replies."""
    return 1 + len(dialogue.turns) + sum(turn.num_reply_tokens > 0 for turn in dialogue.turns)
