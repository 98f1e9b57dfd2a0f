"""Groups of tokens, whose two gradient products run once, and their chunks of logits, from a memory budget."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

LogitsPrecision = Literal["fp16", "fp32"]

ROW_MULTIPLE = 128  # rows of a tile of the products
# A product of n rows does n FLOP a byte of the head; an H200 needs 190 to be busy.
MIN_ROWS = 256
MIN_BORROWED_ROWS = 512
MAX_ROWS = 32768


class RowBytes(NamedTuple):
    """Bytes of one token.

    Args:
        gradient: of the logits' gradient, kept until the products of the group; fp16 student logits use it before.
        logits: of other logits, needed until the row kernel has run.
        maxima: of blocks of logits, needed as long.
    """

    gradient: int
    logits: int
    maxima: int

    @classmethod
    def of(cls, stride: int, num_blocks: int, precision: LogitsPrecision) -> "RowBytes":
        """Return the bytes for rows of `stride` entries: the teacher's logits in fp16, or both sides' in fp32."""
        if precision == "fp16":
            return cls(gradient=2 * stride, logits=2 * stride, maxima=2 * 4 * num_blocks)
        return cls(gradient=2 * stride, logits=2 * 4 * stride, maxima=0)


class Group(NamedTuple):
    """Tokens whose gradient rows exist together.

    Args:
        rows: the tokens of a chunk, whose logits exist together.
        in_weight_grad: the logits use the storage of the weight gradient, until the first group's product writes it. Else
            they use the workspace after the gradient's rows.
    """

    start: int
    stop: int
    rows: int
    in_weight_grad: bool

    def chunks(self) -> Iterator[slice]:
        """Yield the tokens of each chunk."""
        for start in range(self.start, self.stop, self.rows):
            yield slice(start, min(start + self.rows, self.stop))


def plan_groups(num_tokens: int, row: RowBytes, *, workspace_bytes: int, weight_grad_bytes: int) -> list[Group]:
    """Return groups that fit the budget: as few as possible, since each reads and writes the weight gradient.

    Args:
        workspace_bytes: limit of all buffers besides the weight gradient.
        weight_grad_bytes: size of the fp32 weight gradient's storage. 0 means that there is none.

    Raises:
        ValueError: the budget holds less than `ROW_MULTIPLE` tokens.
    """
    groups: list[Group] = []
    done = 0
    rows = min(_floor(weight_grad_bytes // row.logits), _ceil(num_tokens), MAX_ROWS)
    if rows >= min(MIN_BORROWED_ROWS, _ceil(num_tokens)) > 0:
        stop = min(num_tokens, _floor((workspace_bytes - rows * row.maxima) // row.gradient))
        if stop >= min(ROW_MULTIPLE, num_tokens):
            groups, done = [Group(0, stop, min(rows, _ceil(stop)), in_weight_grad=True)], stop
    if done == num_tokens:
        return groups
    of_chunk = row.logits + row.maxima
    several_chunks = _floor((workspace_bytes - MIN_ROWS * of_chunk) // row.gradient)
    most = max(several_chunks, _floor(workspace_bytes // (row.gradient + of_chunk)))
    if most < ROW_MULTIPLE:
        least = ROW_MULTIPLE * (row.gradient + of_chunk)
        raise ValueError(
            f"workspace_gib={workspace_bytes / 2**30:.3f}: must hold {ROW_MULTIPLE} tokens of {least // ROW_MULTIPLE} "
            f"bytes; give {least / 2**30:.3f} or more"
        )
    of_group = _even(num_tokens - done, most)
    fits = min(_floor((workspace_bytes - of_group * row.gradient) // of_chunk), MAX_ROWS)
    rows = _even(of_group, fits)
    for start in range(done, num_tokens, of_group):
        groups.append(Group(start, min(start + of_group, num_tokens), rows, in_weight_grad=False))
    return groups


def _even(count: int, most: int) -> int:
    """Return the size of the fewest equal parts of at most `most` rows, in whole tiles."""
    return _ceil(-(-count // -(-count // most)))


def _floor(rows: int) -> int:
    return rows // ROW_MULTIPLE * ROW_MULTIPLE


def _ceil(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
