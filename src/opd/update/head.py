"""The output head, which turns hidden states into logits or, with a task, into cached hidden states or a loss.

It works inside its own forward: outside of it an untied `lm_head.weight` is one rank's shard. A step's loss on one rank has a
weight per trained token and term, and makes each micro-batch's task of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from opd.batch.rows import RolloutRows, loss_positions
from opd.compat import replaced
from opd.errors import Unfit
from opd.experiment.defaults import head_changes_of
from opd.losses import EventTargets, HiddenTargets, Loss, Output, Weights, head_loss, token_log_probs, unshared_mass
from opd.losses.head import top_tokens
from opd.losses.terms import Targets
from opd.update.attention import Slice
from opd.update.teacher_cache import Fetch

if TYPE_CHECKING:
    from opd.update.teachers import TeacherStates

Counts = dict[str, Tensor | float]
"""Numbers of a micro-batch by name; a tensor is a scalar on its device."""
PER_TOKEN = ("weights", "policy_inputs", "old_log_probs", "events")
"""Fields of a loss and of its tasks that have an entry for each trained token."""
Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Log-probabilities [T] of a micro-batch's tokens -> its loss, and the derivatives [T] of it by them."""


class CollectTask(NamedTuple):
    """Return the hidden states at `positions` ([N] int64, indices into the flattened tokens) and no logits."""

    positions: Tensor

    def output(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return hidden


class Reference(NamedTuple):
    """A model's hidden states at tokens of a micro-batch, and its head [V, d]. A served teacher has neither.

    One of several teachers also has its name, its rows' places in the micro-batch, and its tokens [T_i] int64.
    """

    hidden: Fetch | None
    weight: Tensor | None
    name: str = ""
    rows: tuple[int, ...] = ()
    tokens: Tensor | None = None

    def targets(self) -> HiddenTargets | None:
        """Return the targets of the divergence, once the hidden states are on the device."""
        return None if self.hidden is None or self.weight is None else HiddenTargets(self.hidden(), self.weight)


class LossTask(NamedTuple):
    """Compute the loss of the tokens at `positions` inside the head's forward.

    Args:
        positions, token_ids, token_rows: [T] int64: places in the flattened input, the tokens predicted there, and their rows.
        policy_inputs, old_log_probs: [T] of the policy loss, the first also [T, n].
        events: of served teachers, [T, 1 + k]: the given token, then the k likeliest ones; others' tokens have any numbers.
        slopes: the derivative of a loss of the whole micro-batch, which costs another pass through the head.
        references: the model of the divergence; of several teachers each with its own tokens.
        own: [M] bool, the tokens of M that this rank holds, where ranks share a sequence. None means all.
        shown: [T] bool, the tokens whose most likely alternatives `top_student` and `top_teacher` have. None means no token.
        sizes: `chunk`, `workspace_gib` and `valid_vocab` of `head_loss`.
        entries: of `student` and `teacher`, where more than `valid_vocab`: `unshared_...` statistics have the rest's mass.
    """

    positions: Tensor
    token_ids: Tensor
    token_rows: Tensor
    weights: Weights
    loss: Loss
    policy_inputs: Tensor | None = None
    old_log_probs: Tensor | None = None
    events: EventTargets | None = None
    slopes: Slopes | None = None
    references: tuple[Reference, ...] = ()
    own: Tensor | None = None
    shown: Tensor | None = None
    watch: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = {}
    entries: Mapping[str, int] = {}

    def of(self, reference: Reference) -> "LossTask":
        """Return the task of one reference's tokens alone."""
        own = of_tokens(self, reference.tokens, "positions", "token_ids", "token_rows", "shown", *PER_TOKEN)
        return self._replace(references=(reference,), **own)

    def output(self, hidden: Tensor, weight: Tensor) -> Output:
        """Return the loss and statistics of the student's `hidden` [T, d] through its whole head `weight` [V, d]."""
        if len(self.references) > 1:
            places = [each.tokens for each in self.references if each.tokens is not None]
            parts = [self.of(each).output(hidden[each.tokens], weight) for each in self.references]
            return Output.joined(parts, places)
        temperature, slopes = self.loss.temperature, None
        if self.slopes is not None:
            current = token_log_probs(hidden.detach(), weight, self.token_ids, temperature=temperature, **self.sizes)
            _, slopes = self.slopes(current)
        targets: Targets | None = self.references[0].targets() if self.references else None
        loss = self.loss
        if targets is None and self.events is not None:
            loss, targets = of_server(loss, self.events)
        output = head_loss(
            hidden,
            weight,
            self.token_ids,
            self.weights,
            loss,
            targets=targets,
            advantages=self.policy_inputs,
            old_log_probs=self.old_log_probs,
            slopes=slopes,
            watch=self.watch,
            **self.sizes,
        )
        found = output.statistics
        models = {"student": (hidden, weight, "log_prob")}
        if isinstance(targets, HiddenTargets):
            models["teacher"] = (*targets, "teacher_log_prob")
        for side, (states, head, of_token) in models.items():
            if self.shown is not None:
                vocab = self.sizes["valid_vocab"]
                found[f"top_{side}"] = top_tokens(states, head, self.shown, vocab=vocab, temperature=temperature)
            if side not in self.entries:
                continue
            mass = unshared_mass(
                states,
                head,
                shared=self.sizes["valid_vocab"],
                entries=self.entries[side],
                token_ids=self.token_ids,
                log_prob=found[of_token],
                temperature=temperature,
            )
            found[f"unshared_{side}"] = mass.masked_fill(found["nonfinite"], 0.0)
        return output


def of_server(loss: Loss, events: EventTargets) -> tuple[Loss, EventTargets]:
    """Return the loss and its events from a served teacher's [T, 1 + k]: the likeliest tokens, or the given one alone."""
    is_sampled = loss.kind == "sampled_reverse_kl"
    if is_sampled:  # the divergence that would be its baseline takes all tokens
        loss = replace(loss, params={"baseline": 0})
    columns = slice(0, 1) if is_sampled else slice(1, None)
    return loss, EventTargets(*(each[:, columns].contiguous() for each in events))


def of_tokens(holder: object, tokens: Tensor | None, *names: str) -> dict[str, Any]:
    """Return some fields with the entries of `tokens`, [T] bool or indices, alone."""
    found: dict[str, Any] = {name: getattr(holder, name) for name in names}
    return tree_map_only(Tensor, lambda each: each[tokens], found)  # type: ignore[no-any-return]


AnyTask = TypeVar("AnyTask", CollectTask, LossTask)
"""A task of a step."""


def to_device(task: AnyTask, device: torch.device) -> AnyTask:
    """Return a task with its tensors on a device."""
    moved: AnyTask = tree_map_only(Tensor, lambda each: each.to(device, non_blocking=True), task)
    return moved


@dataclass(frozen=True, kw_only=True)
class HeadLoss:
    """A loss that the student's head computes. Without weights it reads statistics; subclasses count more of a step.

    Args:
        rows: this rank's rows; their T trained tokens have weights, inputs, old log-probabilities and events on the host.
        states: what other models have read of the rows.
        over_rows: the update's rows with trained tokens divide its sum, not their tokens.
        options: further fields of `LossTask`.
    """

    rows: RolloutRows
    loss: Loss
    weights: Weights = field(default_factory=Weights)
    policy_inputs: Tensor | None = None
    old_log_probs: Tensor | None = None
    events: EventTargets | None = None
    states: "TeacherStates | None" = None
    over_rows: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _places(self) -> tuple[Tensor, ...]:
        counts = self.rows.num_trained_tokens.tolist()
        places: tuple[Tensor, ...] = torch.arange(sum(counts)).split(counts)
        return places

    def task(self, micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        """Return the head's task for a micro-batch; arguments as of `HeadEngine.run`."""
        numbers, mask = micro_batch["opd_row"].tolist(), None
        found = loss_positions(self.rows.select(numbers), row_starts=starts)
        tokens = torch.cat([self._places[number] for number in numbers])
        # Copies from the host begin here and run during the backbone's forward.
        references = self.states.for_head(numbers, found, own) if self.states else ()
        slopes = self.slopes(micro_batch, tokens)
        if own is not None:
            found, mask = own.select(found)
            tokens = tokens[mask]
        return LossTask(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            loss=self.loss,
            slopes=slopes,
            references=references,
            own=mask,
            **of_tokens(self, tokens, *PER_TOKEN),
            **self.options,
        )

    def keeping(self, kept: Tensor) -> Self:
        """Return the loss of some trained tokens; `kept` is [T] bool on the host."""
        mask = self.rows.response_mask.clone()
        mask[self.rows.response_mask] = kept
        return replace(self, rows=replace(self.rows, response_mask=mask), **of_tokens(self, kept, *PER_TOKEN))

    def slopes(self, micro_batch: TensorDict, tokens: Tensor) -> Slopes | None:
        """Return the derivative of a loss over whole rows of these tokens. None means that every token has a loss of its own."""
        return None

    def divisor(self, micro_batch: TensorDict) -> float:
        """Return the number, over all ranks, by which the update's sum is divided."""
        return float(micro_batch["batch_num_rows" if self.over_rows else "batch_num_tokens"])

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        """Return the counts of a micro-batch; the host does not wait for the device."""
        return {"sum/loss": output.loss.detach(), "sum/tokens": float(len(task.token_ids))}


class DistillationHead(nn.Linear):
    """A drop-in `lm_head` with the same parameter names; `run_with_task` attaches a task for one forward."""

    task: CollectTask | LossTask | None = None

    @classmethod
    def replace(cls, model: nn.Module) -> "DistillationHead":
        """Make the model's output embedding, tied or not, a head of this class; refuse one that is not `hidden @ W.T`."""
        old = model.get_output_embeddings()  # type: ignore[operator]  # a method of transformers' models
        name = next((n for n, m in model.named_modules() if m is old), None)
        if type(old) is not nn.Linear or name is None:  # a subclass may scale or cap in its own forward
            raise Unfit(f"{type(model).__name__}: output head is {type(old).__name__}, a plain nn.Linear is needed")
        if old.bias is not None:
            raise Unfit(f"{type(model).__name__}.{name} has a bias: logits are not hidden @ W.T, not supported")
        # Change the class in place: the module object, its weight tie and any hooks stay what they are.
        old.__class__ = cls
        return old

    def forward(self, input: Tensor) -> Any:
        """Return logits [..., V] of hidden states [..., d], or with a task its output."""
        if self.task is None:
            return super().forward(input)
        hidden = input.reshape(-1, input.shape[-1]).index_select(0, self.task.positions)
        return self.task.output(hidden, self.weight)


def run_with_task(model: nn.Module, head: DistillationHead, task: CollectTask | LossTask, **inputs: Any) -> Any:
    """Return the `logits` output of a forward of `model` with `task` attached to its head."""
    with replaced(head, task=task):
        return model(**inputs, use_cache=False).logits


def check_head_is_plain(model: nn.Module, head: DistillationHead, name: str, **inputs: Any) -> None:
    """Refuse a model that changes its head's output (soft cap, scale); `inputs` are a small batch, `name` is for the error."""
    seen: list[Tensor] = []
    with torch.no_grad(), head.register_forward_hook(lambda module, given, output: seen.append(output)):
        logits = model(**inputs, use_cache=False).logits
    expected = seen[0]
    scale = expected.abs().max().clamp_min(1e-6)
    error = ((logits.float() - expected.float()).abs().max() / scale).item()
    if error > 1e-3:
        config = getattr(model, "config", None)
        extras = head_changes_of(config.to_dict()) if config is not None else {}
        raise Unfit(
            f"{name}: its logits are not hidden @ W.T (relative difference {error:.2g}; config {extras or 'shows no cause'}). "
            "Distillation from hidden states needs a plain head (Qwen, Llama, Mistral, ...). Gemma, Cohere and Granite are not supported"
        )
