"""Counts of model and tool tokens in the responses: summed over ranks first, turned into metrics once."""

from typing import NamedTuple

from opd.batch.rows import RolloutRows


class ToolMaskCounts(NamedTuple):
    """Response tokens by origin; padding is neither. Add them up over mini-batches and ranks, never average."""

    num_llm_tokens: int
    num_tool_tokens: int


def tool_mask_counts(rows: RolloutRows) -> ToolMaskCounts:
    """Count response tokens sampled by the student and those written by tools.

    Packed rows hold no padding tokens. A row without a single sampled token is verl's synthetic padding row (one
    masked end-of-sequence token as its response), not a tool call, since a response begins with a sampled token: it
    counts as neither.
    """
    num_trained = rows.num_trained_tokens
    num_llm = int(num_trained.sum())
    return ToolMaskCounts(num_llm, int(rows.response_lens[num_trained > 0].sum()) - num_llm)


def tool_mask_metrics(counts: ToolMaskCounts) -> dict[str, float]:
    """`opd/tool_mask/*` of counts already summed over the whole step; the ratio is tool tokens in all response tokens."""
    num_llm, num_tool = counts
    return {
        "opd/tool_mask/has_agent_mask": float(num_tool > 0),
        "opd/tool_mask/llm_tokens": float(num_llm),
        "opd/tool_mask/tool_tokens": float(num_tool),
        "opd/tool_mask/tool_ratio": num_tool / max(num_llm + num_tool, 1),
    }
