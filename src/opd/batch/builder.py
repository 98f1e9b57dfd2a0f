"""From a rollout batch to a distillation batch: the rows, and the padded view.

`OpdBatch.padded`, the prompts made from messages, `build_opd_batch_multiturn` and `build_opd_batch_from_verl_batch` are the
interface of the implementation that this one replaces, for code written against it; the trainer gives token ids and reads rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from opd.batch.rows import RolloutRows
from opd.batch.sources import Batch, has_field, rows_from_batch, rows_from_messages

TEACHER_PROMPTS = "teacher_prompts"
"""The field of a batch with prompts of the teacher's own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpdBatch:
    """Rows to distil on."""

    rows: RolloutRows
    """As the student reads them."""
    teacher_rows: RolloutRows | None = None
    """The same responses behind prompts of the teacher's own; None: it reads `rows`. Loss positions of both name the same
    response tokens in the same order, each at its own places."""

    def padded(self, *, max_length: int, pad_token_id: int) -> dict[str, Tensor]:
        """Return the padded view, each [B, max_length] int64, right padded.

        Keys: `{teacher,student}_{input_ids,attention_mask,position_ids}`, `_loss_mask` (1 on the trained response tokens
        themselves), `valid_row_mask` [B] bool, and [B] `sample_weights` where given. A teacher with prompts of its own has
        `_teacher_loss_mask`.
        """
        rows = self.rows
        student = _padded(rows, max_length, pad_token_id)
        teacher = student if self.teacher_rows is None else _padded(self.teacher_rows, max_length, pad_token_id)
        view = {"_loss_mask": student["loss_mask"], "valid_row_mask": rows.num_trained_tokens > 0}
        if teacher is not student:
            view["_teacher_loss_mask"] = teacher["loss_mask"]
        for side, of_side in (("teacher", teacher), ("student", student)):
            view |= {f"{side}_{name}": tensor for name, tensor in of_side.items() if name != "loss_mask"}
        if rows.sample_weights is not None:
            view["sample_weights"] = rows.sample_weights
        return view


def _padded(rows: RolloutRows, max_length: int, pad_token_id: int) -> dict[str, Tensor]:
    longest = int(rows.lens.max()) if rows.num_rows else 0
    if longest > max_length:
        raise ValueError(f"max_length={max_length}: the longest row has {longest} tokens; the view cuts nothing")
    place = (torch.repeat_interleave(rows.lens), rows.position_ids)
    blank = torch.zeros(rows.num_rows, max_length, dtype=torch.int64, device=rows.input_ids.device)
    is_trained = (rows.position_ids >= torch.repeat_interleave(rows.prompt_lens, rows.lens)).long()
    is_trained[is_trained.bool()] = rows.response_mask.long()
    return {
        "input_ids": torch.full_like(blank, pad_token_id).index_put_(place, rows.input_ids),
        "attention_mask": blank.index_put(place, torch.ones_like(rows.input_ids)),
        "position_ids": blank.index_put(place, rows.position_ids),
        "loss_mask": blank.index_put(place, is_trained),
    }


def build_opd_batch(
    batch: Batch,
    *,
    max_length: int,
    sample_weights: Tensor | None = None,
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
) -> OpdBatch:
    """Build the distillation batch of a rollout batch: exact rollout tokens where present, else the chat template.

    Args:
        batch: `responses`, `response_mask` and either `prompts` (see `rows_from_batch`) or `raw_prompt` (messages of each row).
            The teacher reads nested `teacher_prompts` [B, j] in the place of the prompts, where given.
        max_length: most tokens of a row, prompt + response. A row is never cut.
        sample_weights: [B] weight of each row. tokenizer, chat_template_kwargs, tools: for a batch without `prompts`.
    """
    if has_field(batch, "prompts"):
        rows = rows_from_batch(batch)
    elif has_field(batch, "raw_prompt") and tokenizer is not None:
        rows = rows_from_messages(batch, tokenizer, chat_template_kwargs=chat_template_kwargs, tools=tools)
    else:
        raise ValueError("prompts is missing: give the rollout's prompts, or raw_prompt together with a tokenizer")
    if sample_weights is not None:
        if len(sample_weights) != rows.num_rows:
            raise ValueError(f"sample_weights: {len(sample_weights)} entries for {rows.num_rows} rows; give one a row")
        rows = replace(rows, sample_weights=sample_weights.to(rows.input_ids.device))
    if num_overlong := int((rows.lens > max_length).sum()):
        raise ValueError(
            f"{num_overlong} of {rows.num_rows} rows exceed max_length={max_length} tokens (prompt + response), the longest "
            f"has {int(rows.lens.max())}: raise opd.max_length to data.max_prompt_length + data.max_response_length"
        )
    return OpdBatch(rows=rows, teacher_rows=_teacher_rows(batch, rows))


def _teacher_rows(batch: Batch, rows: RolloutRows) -> RolloutRows | None:
    if not has_field(batch, TEACHER_PROMPTS):
        return None
    read = {"prompts": batch[TEACHER_PROMPTS]} | {name: batch[name] for name in ("responses", "response_mask")}
    if not all(tensor.is_nested for tensor in read.values()):
        raise ValueError(f"{TEACHER_PROMPTS}: these, responses and response_mask must be nested tensors, a row each")
    return replace(rows_from_batch(read), sample_weights=rows.sample_weights)


def build_opd_batch_multiturn(batch: Batch, *, max_length: int, **options: Any) -> OpdBatch:
    """`build_opd_batch` for agent rollouts, whose prompts no chat template could give back: `prompts` only."""
    if not has_field(batch, "prompts"):
        raise ValueError("prompts is missing: a multi-turn batch is built from the rollout's exact tokens only")
    return build_opd_batch(batch, max_length=max_length, **options)


def build_opd_batch_from_verl_batch(batch: Batch, *, max_length: int, tokenizer: Any, **options: Any) -> OpdBatch:
    """`build_opd_batch` from `raw_prompt` only, whatever `prompts` may be there."""
    kept = {name: batch[name] for name in batch.keys() if name not in ("prompts", "input_ids")}  # noqa: SIM118
    return build_opd_batch(kept, max_length=max_length, tokenizer=tokenizer, **options)
