"""Which hidden state predicts which token: the one place in the project where the shift by one lives."""

from typing import NamedTuple

import torch
from torch import Tensor

from opd.batch.rows import RolloutRows, offsets_of


class LossPositions(NamedTuple):
    """The hidden states that predict response tokens, one entry a response token, row after row."""

    flat_index: Tensor
    """[N] int64 into the flattened hidden states [num_flat_tokens, d]."""
    token_ids: Tensor
    """[N] int64, the token that the hidden state predicts."""
    mask: Tensor
    """[N] bool, True = trained on (sampled by the student)."""
    row: Tensor
    """[N] int64, the row of each entry, for per-row weights."""

    def trained(self) -> "LossPositions":
        """Only the entries that are trained on: a head need not be run on tool tokens."""
        return LossPositions(*(field[self.mask] for field in self))


def loss_positions(rows: RolloutRows, *, row_starts: Tensor | None = None) -> LossPositions:
    """Positions prompt_len - 1 ... prompt_len + response_len - 2 of every row, in the flattened hidden states.

    The hidden state at position p of a causal model has read tokens 0 ... p and predicts token p + 1. So the first
    response token is predicted by the last prompt token, and nobody is asked about the last response token's state.

    Args:
        rows: B packed rows.
        row_starts: [B] int64, where the first token of each row lies in the flattened hidden states. None: packed
            without padding, as in `rows.offsets`. For right-padded [B, L, d] hidden states, `padded_row_starts`.

    Returns:
        N = sum of response lengths entries. A padded and a packed forward differ in `flat_index` only.
    """
    row = rows.row_of_response_token
    response_starts = offsets_of(rows.response_lens)[:-1]
    step = torch.arange(len(row), device=row.device) - response_starts[row]
    place = rows.prompt_lens[row] + step  # of each response token, counted from its row's start
    starts = rows.offsets[:-1] if row_starts is None else row_starts
    return LossPositions(
        flat_index=starts[row] + place - 1,
        token_ids=rows.input_ids[rows.offsets[row] + place],
        mask=rows.response_mask,
        row=row,
    )


def padded_row_starts(num_rows: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """[num_rows] int64: row starts of right-padded [num_rows, width, d] hidden states flattened to [num_rows * width, d]."""
    return torch.arange(num_rows, device=device) * width
