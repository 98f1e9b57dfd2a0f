"""Tokens that only one of the two models has: never read by the teacher, never trained behind, and bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from opd.errors import Unfit

_SIDES = {"teacher": "student", "student": "teacher"}


def leave_out_unshared(data: TensorDict, shared: int, read: torch.Tensor | None = None) -> int:
    """Take a row's response out of the loss from its first token on that the teacher lacks; the number of tokens.

    The teacher of a causal model reads everything before that token as the student wrote it, and nothing after it: the
    positions before stay exact, and a prompt with such a token leaves nothing.

    Args:
        data: nested `input_ids` (prompt and response), and nested `response_mask` and `loss_mask` over the response,
            which are replaced.
        shared: ids from here on are not the teacher's.
        read: nested, what the teacher reads in the place of `input_ids`, with the same responses; None: these.
    """
    ids = data["input_ids"] if read is None else read
    if not ids.values().numel() or int(ids.values().max()) < shared:
        return 0
    masks = {name: data[name] for name in ("response_mask", "loss_mask")}
    left = {name: [row.clone() for row in mask.unbind()] for name, mask in masks.items()}
    num_left_out = 0
    for number, row in enumerate(ids.unbind()):
        unread = (row >= shared).nonzero()
        if not len(unread):
            continue
        response = left["response_mask"][number]
        first = max(0, int(unread[0]) - (len(row) - len(response)))
        num_left_out += int(response[first:].sum())
        for mask in left.values():
            mask[number][first:] = 0
    for name, rows in left.items():
        data[name] = torch.nested.nested_tensor_from_jagged(torch.cat(rows), masks[name].offsets())
    return num_left_out


def readable_ids(ids: Any, shared: int) -> torch.Tensor:
    """Nested `ids` with a token that the teacher has in every place; what differs is behind all that is trained on."""
    values = ids.values()
    readable: torch.Tensor = ids
    if values.numel() and int(values.max()) >= shared:
        readable = torch.nested.nested_tensor_from_jagged(values.masked_fill(values >= shared, 0), ids.offsets())
    return readable


def check_unshared(metrics: Mapping[str, float], *, limit: float) -> None:
    """End the run where what both models share is too little of what one of them says.

    Args:
        metrics: of one step; without `opd/unshared_mass_*` the tokenizers are equal.
        limit: `opd.max_unshared_mass`, the largest mean probability over a step's tokens.

    Raises:
        Unfit: a mean is above the limit, or the step has nothing to train on because of tokens that the teacher lacks.
    """
    num_tokens, left_out = metrics.get("opd/num_tokens", 0.0), metrics.get("opd/unshared_tokens", 0.0)
    if left_out and not num_tokens:
        raise Unfit(
            f"all {left_out:.0f} response tokens of the step come at or behind a token that the teacher lacks, so nothing can "
            "be trained: look for such tokens in the prompts (special tokens written into the data) and in what the "
            "student begins its answers with, or choose a teacher with the student's tokenizer"
        )
    for side, other in _SIDES.items():
        mass = metrics.get(f"opd/unshared_mass_{side}", 0.0)
        if mass > limit:
            raise Unfit(
                f"opd.max_unshared_mass={limit:g}: the {side} puts {mass:.3g} of its probability (mean over "
                f"{num_tokens:.0f} tokens) on tokens that the {other} lacks, so the divergence over the shared ones would "
                f"teach something else than it says; choose a {other} with the {side}'s tokenizer, settings in which it "
                "does not use them (data.enable_thinking), or raise opd.max_unshared_mass"
            )
