"""Rows of a step: prompts with their answers, and the tensor columns in which they travel to the ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

FILLER_TOKENS = 8
"""Tokens of a row that only fills a step up."""
IDS, LOG_PROBS = "teacher_ids", "teacher_log_probs"
"""Columns of a run with served teachers, [response, 1 + k] each: token ids int32, and their log-probabilities fp32.

At each place the given token is the first, and the k likeliest ones follow. A row of another teacher has no places.
"""
_OF_PROMPT = ("prompts", "teacher_prompts")


class Order(NamedTuple):
    """Place of a row among the rows of its step."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    """Row of the data set."""
    sample: int = 0
    """Number of the prompt's answer."""

    @property
    def row_id(self) -> int:
        """Return a number that no other row of the step has."""
        return (self.index << 12) | self.sample


@dataclass(kw_only=True)
class Row:
    """One prompt with one answer.

    Attributes:
        uid: of its prompt in this step.
        columns: tensors for the ranks. `prompts` and `responses` are token ids; `response_mask` is 1 for a token of the model. A scored
            row has `rm_scores`; where the server reports them there are `rollout_log_probs`. A kind adds scalars or vectors.
        info: the scorer's own values. is_scored: False where there was no ground truth. num_turns: of the conversation.
    """

    order: Order
    uid: str
    columns: dict[str, Tensor]
    data_source: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    is_scored: bool = True
    num_turns: int = 0

    @property
    def prompt(self) -> Tensor:
        return self.columns["prompts"]

    @property
    def response(self) -> Tensor:
        return self.columns["responses"]

    @property
    def num_tokens(self) -> int:
        """Return the tokens of prompt and answer."""
        return len(self.prompt) + len(self.response)

    @property
    def score(self) -> float:
        """Return the scorer's value of the answer."""
        return float(self.columns["rm_scores"].sum())

    @property
    def is_right(self) -> bool:
        """Return the scorer's own verdict where it gave one; else whether the score is above 0 (math_dapo scores -1/+1)."""
        return bool(float(self.info["acc"]) > 0) if "acc" in self.info else self.score > 0


def row_of(
    order: Order, uid: str, prompt: Sequence[int], response: Sequence[int], mask: Sequence[int], **more: Any
) -> Row:
    """Return a row from plain lists; `more` are attributes of `Row`."""
    named = {"prompts": prompt, "responses": response, "response_mask": mask}
    columns = {name: torch.tensor(list(values), dtype=torch.int64) for name, values in named.items()}
    return Row(order=order, uid=uid, columns=columns, **more)


def columns_of(rows: Sequence[Row]) -> TensorDict:
    """Return the rows as verl's workers read them: vectors as nested tensors, scalars stacked; columns that all rows have."""
    names = [name for name in rows[0].columns if all(name in row.columns for row in rows)]
    made: dict[str, Tensor] = {}
    for name in names:
        values = [row.columns[name] for row in rows]
        made[name] = _nested(values) if values[0].dim() else torch.stack(values)
    inputs = [torch.cat([row.prompt, row.response]) for row in rows]
    made |= {
        "loss_mask": made["response_mask"],
        "input_ids": _nested(inputs),
        "position_ids": _nested([torch.arange(len(ids)) for ids in inputs]),
    }
    return TensorDict(made, batch_size=len(rows))


def share_out(
    rows: Sequence[Row], *, num_ranks: int, multiple_of: int, eos_token_id: int, settings: Mapping[str, Any]
) -> tuple[TensorDict, dict[str, float]]:
    """Return the batch that verl cuts into equal parts for the ranks, and metrics of how even these are.

    Rows come in the order of the data, filled up by rows of weight 0. Then they are shared out so that the ranks' parts cost about the same.

    Args:
        multiple_of: rows of an update over all ranks.
        settings: values that every rank gets with its part.
    """
    ordered = sorted(rows, key=lambda row: row.order)
    multiple = math.lcm(num_ranks, multiple_of)
    ordered += [filler(ordered[0], eos_token_id)] * (-len(ordered) % multiple)
    lengths = torch.tensor([row.num_tokens for row in ordered])
    parts = [list(range(len(ordered)))]
    if num_ranks > 1:  # its search takes 0.3 s for 512 rows, also where there is one part
        parts = get_seqlen_balanced_partitions(calculate_workload(lengths), k_partitions=num_ranks, equal_size=True)
    metrics: dict[str, float] = log_seqlen_unbalance(lengths.tolist(), parts, prefix="global_seqlen")
    batch = columns_of([ordered[place] for part in parts for place in part])
    for name, value in settings.items():
        tu.assign_non_tensor_data(batch, name, value)
    return batch, metrics


def filler(like: Row, eos_token_id: int) -> Row:
    """Return a row that trains nothing, with the columns of another row."""
    columns = {
        name: values.new_zeros(FILLER_TOKENS - 1 if name in _OF_PROMPT else 1, *values.shape[1:])
        if values.dim()
        else torch.zeros_like(values)
        for name, values in like.columns.items()
    }
    for name in {*_OF_PROMPT, "responses"} & columns.keys():
        columns[name].fill_(eos_token_id)
    if "row_id" in columns:
        columns["row_id"].fill_(-1)
    return Row(order=Order(-1), uid="filler", columns=columns)


def _nested(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
