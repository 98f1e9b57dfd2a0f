"""Probe of a model before step 1: rows that share a pack, against the model's own forward of each row alone.

Layers with a state (linear attention, Mamba, short convolutions) may carry it from one row to the next. An attention kernel
may lack a model's sinks, soft cap or window. No error shows these faults.
"""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from opd.errors import Unfit

SHORT, LONG, LONGEST = 24, 40, 4096
"""Tokens of the two rows. The second is longer than the smallest window of the model, and at most `LONGEST`."""
FIRST = 4
"""Tokens at the start of the second row, which a short convolution's state reaches."""
MOST = 0.5
"""Relative error that is never rounding."""
_PARTS = re.compile(r"Norm|MLP|Mlp|Dropout|Identity|MoE|Moe|Expert|Router")

Forward = Callable[[Sequence[Tensor]], Tensor]
"""Token ids of rows -> hidden states [T, d] before the head."""
logger = logging.getLogger(__name__)


def probe_rows(config: Any) -> list[Tensor]:
    """Return the token ids of the two rows, the same on every rank."""
    text = config.get_text_config()
    windows = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    smallest = min((size for size in windows if size), default=0)
    longest = min(LONGEST, max(LONG, smallest + LONG // 2))
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(3, min(text.vocab_size, 1000), (size,), generator=draw) for size in (SHORT, longest)]


def token_errors(found: Tensor, expected: Tensor) -> Tensor:
    """Return the relative error [T] of hidden states [T, d]."""
    distance = (found.float() - expected.float()).norm(dim=-1)
    relative: Tensor = distance / expected.float().norm(dim=-1).clamp_min(1e-12)
    return relative


def part_errors(found: Tensor, expected: Tensor) -> Tensor:
    """Return the mean errors of the first row, of the start of the second, of its first half and of its second."""
    first, second = token_errors(found, expected).split([SHORT, len(expected) - SHORT])
    return torch.stack([part.mean() for part in (first, second[:FIRST], *second[FIRST:].chunk(2))])


@torch.no_grad()
def may_pack(module: Any, name: str, *, packed: Forward, alone: Forward, dtype: torch.dtype) -> bool:
    """Return True if rows may share a pack, False if each needs a forward of its own; refuse a model that differs on one row.

    The allowance is four times what a rounding of the embeddings changes. All ranks agree (a collective call).

    Args:
        packed: the forward of a step, of rows in one pack. alone: the model's own forward of one row.
    """
    rows = probe_rows(module.config)
    expected = torch.cat([alone([row]) for row in rows])

    def round_off(embedding: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Change the embeddings by about a rounding of this precision."""
        noise = torch.rand(output.shape, generator=torch.Generator().manual_seed(0)).to(output) - 0.5
        return output * (1 + torch.finfo(dtype).eps * noise)

    with module.get_input_embeddings().register_forward_hook(round_off):
        rounded = torch.cat([alone([row]) for row in rows])
    least = max(16 * torch.finfo(dtype).eps, 1e-3)
    allowed = (4 * part_errors(rounded, expected)).clamp(least, MOST)

    def is_equal(found: Tensor) -> bool:
        votes = (part_errors(found, expected) <= allowed).all().int()
        if distributed.is_initialized():
            distributed.all_reduce(votes, distributed.ReduceOp.MIN)
        return bool(votes)

    if is_equal(packed(rows)):
        return True
    if is_equal(torch.cat([packed([row]) for row in rows])):
        logger.warning("%s: rows that share a pack change each other; each row is computed alone", name)
        return False
    raise Unfit(
        f"{name}: attn_implementation={module.config._attn_implementation} gives other hidden states than the model's own forward. "
        f"It lacks something that {_mixers(module)} needs (sinks, a soft cap, a window). Choose another "
        "model.attn_implementation, or another model"
    )


def _mixers(module: nn.Module) -> str:
    """Return the kinds of parts by which the model's layers mix tokens."""
    kinds = set(getattr(module, "_no_split_modules", None) or ())
    layers = [one for one in module.modules() if type(one).__name__.removeprefix("FSDP") in kinds]
    parts = {type(part).__name__ for layer in layers for part in layer.children()}
    return ", ".join(sorted(part for part in parts if not _PARTS.search(part))) or type(module).__name__
