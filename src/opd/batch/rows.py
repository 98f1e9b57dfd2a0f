"""The core form of a distillation batch: rollout rows packed without padding, as verl's V1 trainer ships them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutRows:
    """B rows of the rollout's own prompt + response tokens, one after another; only `loss_positions` shifts by one."""

    input_ids: Tensor
    """[num_tokens] int64: prompt and response of row 0, of row 1, ..."""
    prompt_lens: Tensor
    """[B] int64"""
    response_lens: Tensor
    """[B] int64"""
    response_mask: Tensor
    """[num_response_tokens] bool, over responses only: True = sampled by the student, False = tool or environment."""

    def __post_init__(self) -> None:
        if bool((self.prompt_lens < 1).any()):
            empty = (self.prompt_lens < 1).nonzero().flatten().tolist()
            raise ValueError(f"rows {empty}: empty prompt; the first response token needs a prompt token to predict it")

    @property
    def num_rows(self) -> int:
        return len(self.prompt_lens)

    @property
    def lens(self) -> Tensor:
        """[B] int64, prompt + response."""
        return self.prompt_lens + self.response_lens

    @property
    def offsets(self) -> Tensor:
        """[B + 1] int64, where each row starts in `input_ids`, and the end (the cu_seqlens of attention kernels)."""
        return offsets_of(self.lens)

    @property
    def row_of_response_token(self) -> Tensor:
        """[num_response_tokens] int64"""
        rows = torch.arange(self.num_rows, device=self.input_ids.device)
        return torch.repeat_interleave(rows, self.response_lens)

    @property
    def position_ids(self) -> Tensor:
        """[num_tokens] int64, counted from 0 in each row."""
        steps = torch.arange(len(self.input_ids), device=self.input_ids.device)
        return steps - torch.repeat_interleave(self.offsets[:-1], self.lens)

    @property
    def num_trained_tokens(self) -> Tensor:
        """[B] int64, response tokens of each row that are trained on."""
        counts = torch.zeros_like(self.response_lens)
        return counts.index_add_(0, self.row_of_response_token, self.response_mask.long())

    def select(self, rows: Sequence[int]) -> "RolloutRows":
        """Return the given rows in the given order: a mini-batch or micro-batch."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.input_ids.device)
        tokens = self.input_ids.split(self.lens.tolist())
        masks = self.response_mask.split(self.response_lens.tolist())
        return RolloutRows(
            input_ids=torch.cat([tokens[i] for i in rows] or [self.input_ids[:0]]),
            prompt_lens=self.prompt_lens[index],
            response_lens=self.response_lens[index],
            response_mask=torch.cat([masks[i] for i in rows] or [self.response_mask[:0]]),
        )

    def nested(self, values: Tensor) -> Tensor:
        """Return a jagged nested tensor [B, j, ...] of per-token `values` [num_tokens, ...], as verl's engines take them."""
        return torch.nested.nested_tensor_from_jagged(values, self.offsets)


def offsets_of(lens: Tensor) -> Tensor:
    """Return [B + 1] offsets of [B] lengths."""
    return torch.cat([lens.new_zeros(1), lens.cumsum(0)])


class LossPositions(NamedTuple):
    """The hidden states that predict the trained response tokens, one entry a token, row after row."""

    flat_index: Tensor
    """[N] int64 into the flattened hidden states [num_flat_tokens, d]."""
    token_ids: Tensor
    """[N] int64, the token that the hidden state predicts."""
    row: Tensor
    """[N] int64, the row of each entry."""


def loss_positions(rows: RolloutRows, *, row_starts: Tensor | None = None) -> LossPositions:
    """Return positions of every row's trained tokens; position p predicts token p + 1, the first one at prompt_len - 1.

    A head need not be run on tool tokens. Rows begin at `row_starts` [B] int64 in the flattened hidden states, by default at
    `rows.offsets`; right-padded ones have `padded_row_starts`.
    """
    row = rows.row_of_response_token
    step = torch.arange(len(row), device=row.device) - offsets_of(rows.response_lens)[row]
    row, step = row[rows.response_mask], step[rows.response_mask]
    place = rows.prompt_lens[row] + step  # of each response token, counted from its row's start
    starts = rows.offsets if row_starts is None else row_starts
    return LossPositions(starts[row] + place - 1, rows.input_ids[rows.offsets[row] + place], row)


def padded_row_starts(num_rows: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """Return [num_rows] int64, where rows of right-padded [num_rows, width, d] hidden states start when they are flattened."""
    return torch.arange(num_rows, device=device) * width


def tool_mask_metrics(rows: RolloutRows) -> dict[str, float]:
    """Return `opd/tool_mask/*` of a step's rows: response tokens by origin, and the share of tool tokens.

    A row without a sampled token is verl's padding and counts as neither.
    """
    num_trained = rows.num_trained_tokens
    num_llm = int(num_trained.sum())
    num_tool = int(rows.response_lens[num_trained > 0].sum()) - num_llm
    return {
        "opd/tool_mask/has_agent_mask": float(num_tool > 0),
        "opd/tool_mask/llm_tokens": float(num_llm),
        "opd/tool_mask/tool_tokens": float(num_tool),
        "opd/tool_mask/tool_ratio": num_tool / max(num_llm + num_tool, 1),
    }
