"""From a rollout batch to packed rows, to a distillation batch, and to its padded view.

The padded view, prompts made from messages and the two aliases are for code written against the implementation that this one
replaces. The trainer gives token ids and reads rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opd.batch.rows import RolloutRows

TEACHER_PROMPTS = "teacher_prompts"
"""The field of a batch with prompts of the teacher's own."""
Batch = Any
"""Named columns: a mapping, a tensordict's TensorDict, or anything else with `keys` and `[name]`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpdBatch:
    """Rows to distil on."""

    rows: RolloutRows
    """As the student reads them."""
    teacher_rows: RolloutRows | None = None
    """The same responses after prompts of the teacher's own; None means that it reads `rows`. Loss positions of both name the
    same response tokens in the same order, each at its own places."""
    sample_weights: Tensor | None = None
    """[B], the row's weight in the loss; None weighs every row 1."""

    def padded(self, *, max_length: int, pad_token_id: int) -> dict[str, Tensor]:
        """Return the right-padded view, each [B, max_length] int64: `{teacher,student}_{input_ids,attention_mask,position_ids}`.

        `_loss_mask` is 1 on the trained response tokens themselves, also `_teacher_loss_mask` for prompts of the teacher's
        own. [B] are `valid_row_mask`, and `sample_weights` where given.
        """
        view = {"valid_row_mask": self.rows.num_trained_tokens > 0}
        if self.sample_weights is not None:
            view["sample_weights"] = self.sample_weights
        for side, rows in (("student", self.rows), ("teacher", self.teacher_rows or self.rows)):
            if rows.num_rows and (longest := int(rows.lens.max())) > max_length:
                raise ValueError(
                    f"max_length={max_length}: the longest row has {longest} tokens; the view cuts nothing"
                )
            place = (torch.repeat_interleave(rows.lens), rows.position_ids)
            blank = torch.zeros(rows.num_rows, max_length, dtype=torch.int64, device=rows.input_ids.device)
            is_trained = (rows.position_ids >= torch.repeat_interleave(rows.prompt_lens, rows.lens)).long()
            is_trained[is_trained.bool()] = rows.response_mask.long()
            view |= {
                f"{side}_input_ids": torch.full_like(blank, pad_token_id).index_put_(place, rows.input_ids),
                f"{side}_attention_mask": blank.index_put(place, torch.ones_like(rows.input_ids)),
                f"{side}_position_ids": blank.index_put(place, rows.position_ids),
            }
            if rows is self.teacher_rows:
                view["_teacher_loss_mask"] = blank.index_put(place, is_trained)
            elif side == "student":
                view["_loss_mask"] = blank.index_put(place, is_trained)
        return view


def build_opd_batch(
    batch: Batch,
    *,
    max_length: int,
    sample_weights: Tensor | None = None,
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> OpdBatch:
    """Return the rows of a rollout batch, from its exact tokens; without `prompts` its messages and the chat template make them.

    Args:
        batch: `responses`, `response_mask` and either `prompts` (see `rows_from_batch`) or `raw_prompt` (messages of each row).
            The teacher reads nested `teacher_prompts` [B, j] in the place of the prompts, where given.
        max_length: most tokens of a row, prompt + response. A row is never cut.
        sample_weights: [B] weight of each row. tokenizer, chat_template_kwargs: for a batch without `prompts`.
    """
    if _has(batch, "prompts"):
        rows = rows_from_batch(batch)
    elif _has(batch, "raw_prompt") and tokenizer is not None:
        # Only here: a template run again need not give the tokens that the rollout answered.
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        options |= chat_template_kwargs or {}
        messages = batch["raw_prompt"]
        listed = messages.tolist() if hasattr(messages, "tolist") else messages
        prompts = [torch.tensor(tokenizer.apply_chat_template(list(row), **options)) for row in listed]
        rows = _interleaved(prompts, *_responses(batch))
    else:
        raise ValueError("prompts is missing: give the rollout's prompts, or raw_prompt together with a tokenizer")
    if sample_weights is not None and len(sample_weights) != rows.num_rows:
        raise ValueError(f"sample_weights: {len(sample_weights)} entries for {rows.num_rows} rows; give one a row")
    if num_overlong := int((rows.lens > max_length).sum()):
        raise ValueError(
            f"{num_overlong} of {rows.num_rows} rows exceed max_length={max_length} tokens (prompt + response), the longest "
            f"has {int(rows.lens.max())}: raise opd.max_length to data.max_prompt_length + data.max_response_length"
        )
    teacher_rows = None
    if _has(batch, TEACHER_PROMPTS):
        teacher_rows = _interleaved(_unpadded(batch, TEACHER_PROMPTS), *_responses(batch))
    return OpdBatch(rows=rows, teacher_rows=teacher_rows, sample_weights=sample_weights)


def build_opd_batch_multiturn(batch: Batch, *, max_length: int, **options: Any) -> OpdBatch:
    """Call `build_opd_batch` for agent rollouts, whose prompts no chat template could give back: `prompts` only."""
    if not _has(batch, "prompts"):
        raise ValueError("prompts is missing: a multi-turn batch is built from the rollout's exact tokens only")
    return build_opd_batch(batch, max_length=max_length, **options)


def build_opd_batch_from_verl_batch(batch: Batch, *, max_length: int, tokenizer: Any, **options: Any) -> OpdBatch:
    """Call `build_opd_batch` with `raw_prompt` only, without the batch's `prompts`."""
    kept = {name: batch[name] for name in batch.keys() if name not in ("prompts", "input_ids")}  # noqa: SIM118
    return build_opd_batch(kept, max_length=max_length, tokenizer=tokenizer, **options)


def rows_from_batch(batch: Batch) -> RolloutRows:
    """Return packed rows of a rollout batch, from its exact tokens; `input_ids` are checked against them where present.

    Its layout is nested: `prompts` [B, j], `responses` and `response_mask` [B, k]; or padded: left-padded `prompts` [B, P],
    right-padded `responses` and `response_mask` [B, R], `attention_mask` [B, P + R].
    """
    if _has(batch, "position_ids") and batch["position_ids"].dim() > 2:
        raise ValueError("position_ids: more than one axis a token (multi-modal rope); distillation rows are text only")
    prompts = _unpadded(batch, "prompts", at_end=False)
    rows = _interleaved(prompts, *_responses(batch))
    # The model reads `input_ids` and the loss reads prompts and responses: they must be the same tokens.
    if _has(batch, "input_ids") and not torch.equal(torch.cat(_unpadded(batch, "input_ids")), rows.input_ids):
        raise ValueError("input_ids: not the prompts followed by the responses; the forward would read other tokens")
    return rows


def _responses(batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Return the response ids of each row, and their bool masks."""
    ids, masks = _unpadded(batch, "responses"), [row != 0 for row in _unpadded(batch, "response_mask")]
    if (lens := [len(row) for row in ids]) != [len(row) for row in masks]:
        raise ValueError(
            f"response_mask: row lengths {[len(row) for row in masks]} differ from the row lengths of responses, {lens}"
        )
    return ids, masks


def _unpadded(batch: Batch, name: str, *, at_end: bool = True) -> list[Tensor]:
    """Return the rows of a column; a padded one's are the first or the last columns of `attention_mask`."""
    if not _has(batch, name):
        raise ValueError(f"{name} is missing: the batch has {sorted(map(str, batch.keys()))}")
    column: Tensor = batch[name]
    if column.is_nested:
        return [row.long() for row in column.unbind()]
    if not _has(batch, "attention_mask"):
        raise ValueError(
            "attention_mask is missing. Padded prompts and responses need it, because a padding id may also be a real "
            "token. Or give prompts, responses and response_mask as nested tensors"
        )
    mask: Tensor = batch["attention_mask"].bool()
    width = sum(batch[each].shape[1] for each in ("prompts", "responses")) if _has(batch, "prompts") else mask.shape[1]
    if mask.shape[1] != width:
        raise ValueError(f"attention_mask: {mask.shape[1]} columns, but prompts and responses together have {width}")
    first = width - column.shape[1] if at_end else 0
    kept = mask[:, first : first + column.shape[1]]
    return [row[attended].long() for row, attended in zip(column, kept, strict=True)]


def _has(batch: Batch, name: str) -> bool:
    return name in batch.keys()  # noqa: SIM118 - `in` on a TensorDict itself raises


def _interleaved(prompts: Sequence[Tensor], responses: Sequence[Tensor], masks: list[Tensor]) -> RolloutRows:
    if len(prompts) != len(responses):
        raise ValueError(f"prompts: {len(prompts)} rows, but responses have {len(responses)}")
    device = responses[0].device
    lens = [torch.tensor([len(row) for row in rows], device=device) for rows in (prompts, responses)]
    ids = torch.cat([part.to(device) for pair in zip(prompts, responses, strict=True) for part in pair])
    return RolloutRows(input_ids=ids, prompt_lens=lens[0], response_lens=lens[1], response_mask=torch.cat(masks))
