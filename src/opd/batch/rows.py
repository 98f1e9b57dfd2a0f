"""The core form of a distillation batch: rollout rows packed without padding, as verl's V1 trainer ships them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutRows:
    """B rows of prompt + response tokens, one behind another.

    The tokens and masks are the rollout's own: nothing is tokenised again, cut, shifted or padded. Where a hidden
    state predicts a token is said in `opd.batch.positions` alone.

    Raises:
        ValueError: lengths that do not add up, or a row without a prompt token (nothing predicts its first token).
    """

    input_ids: Tensor
    """[num_tokens] int64: prompt and response of row 0, of row 1, ..."""
    prompt_lens: Tensor
    """[B] int64"""
    response_lens: Tensor
    """[B] int64"""
    response_mask: Tensor
    """[num_response_tokens] bool, over responses only: True = sampled by the student, False = tool or environment."""
    sample_weights: Tensor | None = None
    """[B] float, the row's weight in the loss; None weighs every row 1."""

    def __post_init__(self) -> None:
        num_tokens, num_response_tokens = int(self.lens.sum()), int(self.response_lens.sum())
        if len(self.input_ids) != num_tokens or len(self.response_mask) != num_response_tokens:
            raise ValueError(
                f"rows: lengths promise {num_tokens} tokens of which {num_response_tokens} are responses, but there are "
                f"{len(self.input_ids)} input ids and {len(self.response_mask)} mask entries"
            )
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

    def select(self, rows: Sequence[int] | Tensor) -> "RolloutRows":
        """The given rows in the given order: a mini-batch or micro-batch."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.input_ids.device)
        order = index.tolist()
        tokens = self.input_ids.split(self.lens.tolist())
        masks = self.response_mask.split(self.response_lens.tolist())
        return replace(
            self,
            input_ids=torch.cat([tokens[i] for i in order] or [self.input_ids[:0]]),
            prompt_lens=self.prompt_lens[index],
            response_lens=self.response_lens[index],
            response_mask=torch.cat([masks[i] for i in order] or [self.response_mask[:0]]),
            sample_weights=None if self.sample_weights is None else self.sample_weights[index],
        )

    def to(self, device: torch.device | str) -> "RolloutRows":
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)

    def nested(self, values: Tensor) -> Tensor:
        """A jagged nested tensor [B, j, ...] of per-token `values` [num_tokens, ...], as verl's engines take them."""
        return torch.nested.nested_tensor_from_jagged(values, self.offsets)


def offsets_of(lens: Tensor) -> Tensor:
    """[B] lengths -> [B + 1] offsets."""
    return torch.cat([lens.new_zeros(1), lens.cumsum(0)])
