"""Groups of tokens: chunk sizes of the fused divergence from a memory budget, free of torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LogitsPrecision = Literal["fp16", "fp32"]

# Rows in whole tiles of the products. A product of n rows does n FLOP a byte of the head; an H200 needs 190 to be busy.
# A group's last chunks may have MIN_LAST_ROWS, its usual ones MIN_LOGITS_ROWS.
ROW_MULTIPLE = 128
MIN_LOGITS_ROWS = 512
MIN_LAST_ROWS = 256
MAX_LOGITS_ROWS = 32768
GRADIENT_BYTES = 2  # an entry of the logits' gradient, bf16


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
    sizes: tuple[int, ...]
    """Tokens of each chunk, whose logits exist together."""
    in_weight_grad: bool
    """The logits lie in the weight gradient's storage, which is free until the first group's product writes it; else behind
    the gradient's rows of their own chunk, where those of later chunks will be."""

    @classmethod
    def of_equal_chunks(cls, start: int, stop: int, rows: int, *, in_weight_grad: bool) -> "TokenGroup":
        """Chunks of `rows` tokens, the last one of what is left."""
        sizes = tuple(min(rows, stop - first) for first in range(start, stop, rows))
        return cls(start=start, sizes=sizes, in_weight_grad=in_weight_grad)

    @property
    def stop(self) -> int:
        """Behind the last token."""
        return self.start + sum(self.sizes)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of each chunk of logits, in absolute token positions."""
        start = self.start
        for size in self.sizes:
            yield start, start + size
            start += size


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
            groups.append(TokenGroup.of_equal_chunks(0, stop, logits_rows, in_weight_grad=True))
    done = groups[-1].stop if groups else 0
    if done < num_tokens:
        rows = _fit(num_tokens - done, row, workspace_bytes)
        for start in range(done, num_tokens, rows):
            sizes = _sizes(min(rows, num_tokens - start), row, workspace_bytes)
            groups.append(TokenGroup(start=start, sizes=sizes, in_weight_grad=False))
    return groups


def _fit(num_tokens: int, row: RowBytes, workspace_bytes: int) -> int:
    """Rows of a group: the fewest equal groups whose chunks stay efficient."""
    per_row = row.gradient + row.logits + row.side
    _check_rows(_floor(workspace_bytes // per_row), per_row, workspace_bytes)
    num_groups = -(-num_tokens * row.gradient // workspace_bytes)
    while True:
        rows = _ceil(-(-num_tokens // num_groups))
        sizes = _sizes(rows, row, workspace_bytes)
        at_least = (min(MIN_LOGITS_ROWS, rows), *[min(MIN_LAST_ROWS, rows)] * (len(sizes) - 1))
        if sizes and all(size >= least for size, least in zip(sizes, at_least, strict=True)):
            return rows
        # A workspace of less than MIN_LOGITS_ROWS tokens has groups of one chunk.
        if len(sizes) == 1:
            return rows
        num_groups += 1


def _sizes(num_rows: int, row: RowBytes, workspace_bytes: int) -> tuple[int, ...]:
    """Chunks of a group, the fewest and then the most even ones; none if one could not be a tile.

    Each has what the gradient's rows up to its own end leave of the workspace.
    """

    def up_to(most: int) -> tuple[int, ...]:
        sizes: list[int] = []
        while (left := num_rows - sum(sizes)) > 0:
            free = workspace_bytes - sum(sizes) * row.gradient
            room = min(_floor(free // (row.gradient + row.logits + row.side)), most)
            if room < min(ROW_MULTIPLE, left):
                return ()
            sizes.append(min(room, left))
        return tuple(sizes)

    fewest = up_to(MAX_LOGITS_ROWS)
    if not fewest:
        return ()
    most = _ceil(-(-num_rows // len(fewest)))
    while len(even := up_to(most)) != len(fewest):
        most += ROW_MULTIPLE
    return even


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
