"""Adapters from the layouts in which rollouts arrive to packed rows: verl's V1 nested rows, padded rows, chat messages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from opd.batch.rows import RolloutRows


class Batch(Protocol):
    """Named columns: a mapping, a tensordict's TensorDict, or anything else with these two methods."""

    def keys(self) -> Iterable[Any]: ...

    def __getitem__(self, name: str, /) -> Any: ...


def rows_from_batch(batch: Batch) -> RolloutRows:
    """Return packed rows of a rollout batch, from its exact tokens; `input_ids` are checked against them where present.

    Its layout is nested: `prompts` [B, j], `responses` and `response_mask` [B, k]; or padded: left-padded `prompts` [B, P],
    right-padded `responses` and `response_mask` [B, R], `attention_mask` [B, P + R].
    """
    if has_field(batch, "position_ids") and batch["position_ids"].dim() > 2:
        raise ValueError("position_ids: more than one axis a token (multi-modal rope); distillation rows are text only")
    prompts, prompt_lens = _prompts(batch)
    responses, response_lens, response_mask = _responses(batch)
    rows = _interleave(prompts, prompt_lens, responses, response_lens, response_mask)
    _check_input_ids(batch, rows)
    return rows


def rows_from_messages(
    batch: Batch,
    tokenizer: Any,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
) -> RolloutRows:
    """Packed rows whose prompts are made from `raw_prompt` (messages of each row) by the tokenizer's chat template.

    Only for batches without `prompts`: a template run again need not give the tokens that the rollout answered.
    """
    messages = _column(batch, "raw_prompt")
    encoded = [
        tokenizer.apply_chat_template(
            list(row),
            tools=tools,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **(chat_template_kwargs or {}),
        )
        for row in messages
    ]
    responses, response_lens, response_mask = _responses(batch)
    prompts = torch.tensor([token for row in encoded for token in row], dtype=torch.int64, device=responses.device)
    prompt_lens = torch.tensor([len(row) for row in encoded], dtype=torch.int64, device=responses.device)
    return _interleave(prompts, prompt_lens, responses, response_lens, response_mask)


def has_field(batch: Batch, name: str) -> bool:
    return name in batch.keys()  # noqa: SIM118 - `in` on a TensorDict itself raises


def _prompts(batch: Batch) -> tuple[Tensor, Tensor]:
    prompts = _tensor(batch, "prompts")
    if prompts.is_nested:
        return _unpack(prompts)
    mask, width = _attention_mask(batch), prompts.shape[1] + _tensor(batch, "responses").shape[1]
    if mask.shape[1] != width:
        raise ValueError(f"attention_mask: {mask.shape[1]} columns, but prompts and responses together have {width}")
    mask = mask[:, : prompts.shape[1]]
    return prompts[mask].long(), mask.sum(dim=1)


def _responses(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Flat response ids, lengths and bool mask."""
    responses, response_mask = _tensor(batch, "responses"), _tensor(batch, "response_mask")
    if responses.is_nested != response_mask.is_nested:
        raise ValueError("responses and response_mask: one is nested and the other padded; give both in one layout")
    if responses.is_nested:
        (flat, lens), (flat_mask, mask_lens) = _unpack(responses), _unpack(response_mask)
        if not torch.equal(lens, mask_lens):
            raise ValueError(
                f"response_mask: row lengths {mask_lens.tolist()} are not those of responses, {lens.tolist()}"
            )
        return flat, lens, flat_mask != 0
    if responses.shape != response_mask.shape:
        raise ValueError(
            f"response_mask {tuple(response_mask.shape)}: must have responses' shape {tuple(responses.shape)}"
        )
    attended = _attention_mask(batch)
    attended = attended[:, attended.shape[1] - responses.shape[1] :]
    if bool(((response_mask != 0) & ~attended).any()):
        raise ValueError("response_mask: marks padding (attention_mask 0) as trained on; it must be 0 there")
    return responses[attended].long(), attended.sum(dim=1), response_mask[attended] != 0


def _attention_mask(batch: Batch) -> Tensor:
    if not has_field(batch, "attention_mask"):
        raise ValueError(
            "attention_mask is missing: padded prompts and responses need it, because a padding id may also be a real "
            "token; or give prompts, responses and response_mask as nested tensors"
        )
    return _tensor(batch, "attention_mask").bool()


def _tensor(batch: Batch, name: str) -> Tensor:
    if not has_field(batch, name):
        raise ValueError(f"{name} is missing: the batch has {sorted(map(str, batch.keys()))}")
    tensor: Tensor = batch[name]
    return tensor


def _column(batch: Batch, name: str) -> list[Any]:
    """A non-tensor column as a list: numpy array, list or tensordict's NonTensorStack."""
    if not has_field(batch, name):
        raise ValueError(f"{name} is missing: the batch has {sorted(map(str, batch.keys()))}")
    column = batch[name]
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _unpack(nested: Tensor) -> tuple[Tensor, Tensor]:
    """Flat values and row lengths [B] int64 of a nested tensor [B, j] of either torch layout, with or without gaps."""
    parts = nested.unbind()
    lens = torch.tensor([len(part) for part in parts], dtype=torch.int64, device=nested.device)
    return torch.cat(parts).long(), lens


def _interleave(
    prompts: Tensor, prompt_lens: Tensor, responses: Tensor, response_lens: Tensor, response_mask: Tensor
) -> RolloutRows:
    if len(prompt_lens) != len(response_lens):
        raise ValueError(f"prompts: {len(prompt_lens)} rows, but responses have {len(response_lens)}")
    pairs = zip(prompts.split(prompt_lens.tolist()), responses.split(response_lens.tolist()), strict=True)
    return RolloutRows(
        input_ids=torch.cat([part for pair in pairs for part in pair] or [prompts]),
        prompt_lens=prompt_lens,
        response_lens=response_lens,
        response_mask=response_mask,
    )


def _check_input_ids(batch: Batch, rows: RolloutRows) -> None:
    """The model reads `input_ids` and the loss reads prompts and responses: they must be the same tokens."""
    if not has_field(batch, "input_ids"):
        return
    input_ids = _tensor(batch, "input_ids")
    flat = _unpack(input_ids)[0] if input_ids.is_nested else input_ids[_attention_mask(batch)]
    if not torch.equal(flat, rows.input_ids):
        raise ValueError("input_ids: not the prompts followed by the responses; the forward would read other tokens")
