"""Tool-mask counts: tokens by origin, without padding, summed before the one division."""

import pytest

from opd.batch import ToolMaskCounts, rows_from_batch, tool_mask_counts, tool_mask_metrics


def test_counts_are_the_rollouts_tokens_whatever_the_padding(batch):
    # Defect 10: the original counts response_mask == 0, which in the padded layouts is 8 and 14 instead of 2.
    assert tool_mask_counts(rows_from_batch(batch)) == ToolMaskCounts(num_llm_tokens=7, num_tool_tokens=2)


def test_verls_synthetic_padding_rows_are_no_tool_calls(make_nested, rows):
    # verl fills a batch with rows of 127 end-of-sequence tokens as prompt and one masked token as response.
    padding = ([3] * 127, [3], [0])
    counts = tool_mask_counts(rows_from_batch(make_nested([*rows, padding, padding])))
    assert counts == ToolMaskCounts(num_llm_tokens=7, num_tool_tokens=2)


def test_a_response_may_be_empty(make_nested):
    assert tool_mask_counts(rows_from_batch(make_nested([([1, 2], [], []), ([1], [2], [1])]))) == ToolMaskCounts(1, 0)


def test_metrics_divide_the_summed_counts_once():
    # Two ranks: 1 of 2 and 0 of 8 tokens are tool tokens. Their ratios' mean is 0.25, the batch's ratio 0.1.
    ranks = [ToolMaskCounts(1, 1), ToolMaskCounts(8, 0)]
    metrics = tool_mask_metrics(ToolMaskCounts(*(sum(column) for column in zip(*ranks, strict=True))))
    assert metrics == {
        "opd/tool_mask/has_agent_mask": 1.0,
        "opd/tool_mask/llm_tokens": 9.0,
        "opd/tool_mask/tool_tokens": 1.0,
        "opd/tool_mask/tool_ratio": pytest.approx(0.1),
    }


def test_a_batch_without_tools_or_without_tokens_has_no_agent_mask():
    assert tool_mask_metrics(ToolMaskCounts(5, 0))["opd/tool_mask/has_agent_mask"] == 0.0
    assert tool_mask_metrics(ToolMaskCounts(0, 0))["opd/tool_mask/tool_ratio"] == 0.0
