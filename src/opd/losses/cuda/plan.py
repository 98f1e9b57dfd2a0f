"""Which tokens are worked on together: chunk sizes of the fused divergence from a memory budget, free of torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LogitsPrecision = Literal["fp16", "fp32"]

# Rows in whole tiles of the products. Below MIN_LOGITS_ROWS a head is read from memory faster than it is multiplied:
# at 512 rows the product does 512 FLOP a byte of the head, twice what an H200 needs to be busy.
ROW_MULTIPLE = 128
MIN_LOGITS_ROWS = 512
MAX_LOGITS_ROWS = 32768  # a row is a grid index of the row kernel, at most 65535
GRADIENT_BYTES = 2  # an entry of the logits' gradient, bf16 or fp16


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """Bytes that one token needs in each kind of buffer."""

    gradient: int
    """Kept until the products of the whole group: the logits' gradient (fp16 student logits live in it first)."""
    logits: int
    """Needed only between head product and row kernel, and may lie in the weight gradient's storage."""
    side: int
    """Needed as long, but never there: block maxima."""

    @classmethod
    def of(cls, stride: int, num_blocks: int, precision: LogitsPrecision) -> "RowBytes":
        """For rows of `stride` entries. fp16: teacher logits, and fp32 maxima of both sides; fp32: both sides' logits."""
        if precision == "fp16":
            return cls(gradient=GRADIENT_BYTES * stride, logits=2 * stride, side=2 * 4 * num_blocks)
        return cls(gradient=GRADIENT_BYTES * stride, logits=2 * 4 * stride, side=0)


@dataclass(frozen=True, kw_only=True)
class TokenGroup:
    """Tokens whose gradient rows exist together, so that each of the two gradient products runs once for all of them."""

    start: int
    stop: int
    logits_rows: int
    """Tokens whose logits exist together."""
    in_weight_grad: bool
    """The logits lie in the weight gradient's storage, which is free until the first group's product writes it."""

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of each chunk of logits, in absolute token positions."""
        for start in range(self.start, self.stop, self.logits_rows):
            yield start, min(start + self.logits_rows, self.stop)


def plan_groups(num_tokens: int, row: RowBytes, *, workspace_bytes: int, weight_grad_bytes: int) -> list[TokenGroup]:
    """Split tokens into groups that fit the budget: as few as possible, since each reads and writes the weight gradient.

    Args:
        workspace_bytes: limit of all buffers beside the weight gradient.
        weight_grad_bytes: size of the fp32 weight gradient's storage, 0 if there is none to borrow.

    Raises:
        ValueError: the budget holds less than `ROW_MULTIPLE` tokens.
    """
    groups: list[TokenGroup] = []
    logits_rows = min(_floor(weight_grad_bytes // row.logits), _ceil(num_tokens), MAX_LOGITS_ROWS)
    if logits_rows >= min(MIN_LOGITS_ROWS, _ceil(num_tokens)) > 0:
        stop = min(num_tokens, _floor((workspace_bytes - logits_rows * row.side) // row.gradient))
        if stop >= min(ROW_MULTIPLE, num_tokens):
            logits_rows = min(logits_rows, _ceil(stop))
            groups.append(TokenGroup(start=0, stop=stop, logits_rows=logits_rows, in_weight_grad=True))
    done = groups[-1].stop if groups else 0
    if done < num_tokens:
        rows, logits_rows = _fit(num_tokens - done, row, workspace_bytes)
        groups += [
            TokenGroup(start=s, stop=min(s + rows, num_tokens), logits_rows=logits_rows, in_weight_grad=False)
            for s in range(done, num_tokens, rows)
        ]
    return groups


def plan_scores(num_tokens: int, row: RowBytes, *, workspace_bytes: int) -> list[TokenGroup]:
    """Split tokens for statistics without a gradient: nothing is kept, so a group is one chunk."""
    per_row = row.logits + row.side + (row.gradient if row.side else 0)  # fp16 student logits have no other place
    rows = min(_floor(workspace_bytes // per_row), MAX_LOGITS_ROWS)
    _check_rows(rows, per_row, workspace_bytes)
    return [
        TokenGroup(start=s, stop=min(s + rows, num_tokens), logits_rows=rows, in_weight_grad=False)
        for s in range(0, num_tokens, rows)
    ]


def _fit(num_tokens: int, row: RowBytes, workspace_bytes: int) -> tuple[int, int]:
    """(rows of a group, rows of its chunks of logits): the fewest equal groups whose chunks stay efficient."""
    per_row = row.gradient + row.logits + row.side
    _check_rows(_floor(workspace_bytes // per_row), per_row, workspace_bytes)
    num_groups = -(-num_tokens * row.gradient // workspace_bytes)
    while True:
        rows = _ceil(-(-num_tokens // num_groups))
        logits_rows = min(
            rows, MAX_LOGITS_ROWS, _floor((workspace_bytes - rows * row.gradient) // (row.logits + row.side))
        )
        if logits_rows >= min(MIN_LOGITS_ROWS, rows):
            return rows, logits_rows
        num_groups += 1


def _check_rows(rows: int, row_bytes: int, workspace_bytes: int) -> None:
    if rows < ROW_MULTIPLE:
        raise ValueError(
            f"workspace_gib={workspace_bytes / 2**30:.3f}: holds {workspace_bytes // row_bytes} tokens of "
            f"{row_bytes} bytes, at least {ROW_MULTIPLE} are needed; give {ROW_MULTIPLE * row_bytes / 2**30:.3f} or more"
        )


def _floor(rows: int) -> int:
    return rows // ROW_MULTIPLE * ROW_MULTIPLE


def _ceil(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
