"""Tokens that only one of the two models has: the teacher reads none, none is trained after the first, and their mass is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from opd.errors import Unfit

_SIDES = {"teacher": "student", "student": "teacher"}


def leave_out_unshared(data: TensorDict, shared: int, read: torch.Tensor | None = None) -> int:
    """Mask each row's response from the first token that the teacher lacks; return the number of masked tokens.

    Args:
        data: nested `input_ids`, and nested masks over the response, which are replaced.
        shared: the teacher lacks ids from here on. read: nested rows that it reads in the place of `input_ids`.
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
    """Return nested `ids` with 0 for tokens that the teacher lacks; all trained tokens are before them."""
    values = ids.values()
    readable: torch.Tensor = ids
    if values.numel() and int(values.max()) >= shared:
        readable = torch.nested.nested_tensor_from_jagged(values.masked_fill(values >= shared, 0), ids.offsets())
    return readable


def check_unshared(metrics: Mapping[str, float], *, limit: float) -> None:
    """Refuse a step whose mean mass of unshared tokens is above `opd.max_unshared_mass`, or that they leave without a trained token."""
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
