"""The output head that turns hidden states into logits, into cached hidden states, or into a divergence.

The head has to do its work *inside its own forward*: FSDP2 gathers a module's weight in that module's pre-forward
hook and frees it afterwards, so an untied `lm_head.weight` read anywhere else is one rank's shard. verl's
logits-processor hook comes too late for the same reason, and only passes tensors of one value a token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from opd.errors import Unfit
from opd.losses import DivergenceKind, DivergenceOutput
from opd.losses.entropy import chunk_rows, next_token_entropy
from opd.losses.fused import StorageMemory, head_divergence
from opd.losses.hopper.plan import LogitsPrecision
from opd.losses.policy import PolicyTerm, token_log_probs
from opd.losses.unshared import unshared_mass
from opd.worker.loss_task import LossTask
from opd.worker.teacher_cache import Fetch


class CollectTask(NamedTuple):
    """Return the hidden states at `positions` ([N] int64, indices into the flattened tokens) and no logits."""

    positions: torch.Tensor


class EntropyTask(NamedTuple):
    """Return the entropies [N] at `positions`; arguments as of `DivergenceTask`."""

    positions: torch.Tensor
    temperature: float
    chunk_size: int
    valid_vocab: int
    workspace_gib: float

    def entropy(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[N] of the student's `hidden` [N, d_S] through its whole head `weight` [V_S, d_S]."""
        on_gpu = hidden.device.type == "cuda"
        rows = chunk_rows(self.workspace_gib, self.valid_vocab) if on_gpu else self.chunk_size
        return next_token_entropy(
            hidden, weight, temperature=self.temperature, valid_vocab=self.valid_vocab, chunk_size=rows
        )


class LogProbTask(NamedTuple):
    """Return log p [N] of `token_ids` at `positions`; arguments as of `DivergenceTask`."""

    positions: torch.Tensor
    token_ids: torch.Tensor
    temperature: float
    chunk_size: int
    valid_vocab: int

    def log_probs(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[N] of the student's `hidden` [N, d_S] through its whole head `weight` [V_S, d_S]."""
        return token_log_probs(
            hidden,
            weight,
            self.token_ids,
            temperature=self.temperature,
            valid_vocab=self.valid_vocab,
            chunk_size=self.chunk_size,
        )


@dataclass(frozen=True, kw_only=True)
class TeacherPart:
    """The rows of a micro-batch that one of several teachers has read.

    Args:
        name: the teacher's.
        rows: its rows, by their places in the micro-batch.
        tokens: [N_i] int64, its tokens among the task's N, ascending.
        hidden, weight: as `teacher_hidden` [N_i, d_T] and `teacher_weight` of a task with one teacher.
    """

    name: str
    rows: tuple[int, ...]
    tokens: torch.Tensor
    hidden: Fetch
    weight: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class DivergenceTask:
    """Everything the student's head needs to turn its hidden states into the weighted divergence of one micro-batch.

    Args:
        positions: [N] int64, indices into the flattened tokens whose next-token distribution is compared.
        token_ids: [N] int64, the rollout's token at each of them (for log p of the sampled token).
        token_rows: [N] int64, the micro-batch's row that each of them is of; read by who counts, not by the head.
        token_weights: [N] fp32, factor of each token in the loss sum (reward weight; 1 without one).
        teacher_hidden: [N, d_T], the teacher's post-final-norm hidden states at the same tokens, perhaps still on their
            way to the device: the head asks for them when the backbone's forward is queued.
        teacher_weight: [V_T, d_T], the teacher's head.
        parts: of several teachers what each of them has read, none of which is `teacher_hidden` or
            `teacher_weight`, unset then; every token is in one of them.
        kind, beta, temperature, chunk_size, valid_vocab, workspace_gib, top_k: see `opd.losses.fused.head_divergence`.
        policy: a policy gradient on the same tokens; None: none.
        own: [M] bool, which of the micro-batch's trained tokens are the N of this rank, where ranks share a sequence; None:
            all.
        student_vocab, teacher_vocab: entries of each model's tokenizer; those from `valid_vocab` on the other lacks.
        unshared_mass: [N] probability of a model on such tokens, by `student` and `teacher`; filled in by the head's
            forward for a model that has any.
    """

    positions: torch.Tensor
    token_ids: torch.Tensor
    token_rows: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    token_weights: torch.Tensor
    teacher_hidden: Fetch = field(default_factory=lambda: Fetch(torch.empty(0), None))
    teacher_weight: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    parts: tuple[TeacherPart, ...] = ()
    kind: DivergenceKind
    beta: float
    temperature: float
    chunk_size: int
    valid_vocab: int
    workspace_gib: float
    top_k: int = 0
    policy: PolicyTerm | None = None
    own: torch.Tensor | None = None
    student_vocab: int = 0
    teacher_vocab: int = 0
    unshared_mass: dict[str, torch.Tensor] = field(default_factory=dict)

    def divergence(self, hidden: torch.Tensor, weight: torch.Tensor, precision: LogitsPrecision) -> DivergenceOutput:
        """The weighted divergence of the student's `hidden` [N, d_S] through its whole head `weight` [V_S, d_S]."""
        if self.parts:
            outputs = [self.of(part).divergence(hidden[part.tokens], weight, precision) for part in self.parts]
            return DivergenceOutput.joined(outputs, [part.tokens for part in self.parts])
        teacher_hidden = self.teacher_hidden.ready()
        output = head_divergence(
            hidden,
            weight,
            teacher_hidden,
            self.teacher_weight,
            self.kind,
            token_weights=self.token_weights,
            beta=self.beta,
            temperature=self.temperature,
            chunk_size=self.chunk_size,
            valid_vocab=self.valid_vocab,
            token_ids=self.token_ids,
            workspace_gib=self.workspace_gib,
            precision=precision,
            top_k=self.top_k,
            policy=self.policy,
        )
        self._note_unshared("student", self.student_vocab, hidden, weight, output.student_log_prob, output.nonfinite)
        self._note_unshared(
            "teacher",
            self.teacher_vocab,
            teacher_hidden,
            self.teacher_weight,
            output.teacher_log_prob,
            output.nonfinite,
        )
        return output

    def of(self, part: TeacherPart) -> DivergenceTask:
        """The task of one part's tokens alone."""
        return replace(
            self,
            parts=(),
            positions=self.positions[part.tokens],
            token_ids=self.token_ids[part.tokens],
            token_weights=self.token_weights[part.tokens],
            policy=None if self.policy is None else self.policy.at(part.tokens),
            teacher_hidden=part.hidden,
            teacher_weight=part.weight,
        )

    def _note_unshared(
        self,
        side: str,
        entries: int,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        log_prob: torch.Tensor | None,
        nonfinite: torch.Tensor,
    ) -> None:
        if entries <= self.valid_vocab or log_prob is None:
            return
        mass = unshared_mass(
            hidden,
            weight,
            shared=self.valid_vocab,
            entries=entries,
            token_ids=self.token_ids,
            log_prob=log_prob,
            temperature=self.temperature,
        )
        self.unshared_mass[side] = mass.masked_fill(nonfinite, 0.0)


class ProbeTask(NamedTuple):
    """Return plain logits and keep them in `seen`, so that the model's final logits can be compared with them."""

    seen: list[torch.Tensor]


HeadTask = CollectTask | EntropyTask | LogProbTask | DivergenceTask | LossTask | ProbeTask


class DistillationHead(nn.Linear):
    """A drop-in `lm_head`: plain logits without a task, else what the task says.

    A task is attached for one forward by `DistillationHead.run`; parameter names do not change, so checkpoints and
    weight sync see the model they know.
    """

    task: HeadTask | None = None
    storage: StorageMemory

    @classmethod
    def replace(cls, model: nn.Module) -> DistillationHead:
        """Swap the model's output embedding for a head of this class that shares its weight (tied or not).

        Raises:
            Unfit: the model has no linear output head, or one with a bias (its logits are not `hidden @ W.T`).
        """
        old = model.get_output_embeddings()  # type: ignore[operator]  # a method of transformers' models
        name = next((n for n, m in model.named_modules() if m is old), None)
        if type(old) is not nn.Linear or name is None:  # a subclass may scale or cap in its own forward
            raise Unfit(f"{type(model).__name__}: output head is {type(old).__name__}, a plain nn.Linear is needed")
        if old.bias is not None:
            raise Unfit(f"{type(model).__name__}.{name} has a bias: logits are not hidden @ W.T, not supported")
        # Change the class in place: the module object, its weight tie and any hooks stay what they are.
        old.__class__ = cls
        old.storage = StorageMemory()
        return old

    def forward(self, input: torch.Tensor) -> Any:
        """input: [..., d] hidden states. Returns logits [..., V], hidden states [N, d], entropies or log-probabilities [N], or the
        loss with its statistics.
        """
        task = self.task
        if task is None:
            return super().forward(input)
        if isinstance(task, ProbeTask):
            logits = super().forward(input)
            task.seen.append(logits)
            return logits
        hidden = input.reshape(-1, input.shape[-1]).index_select(0, task.positions)
        if isinstance(task, CollectTask):
            return hidden
        if isinstance(task, EntropyTask):
            return task.entropy(hidden, self.weight)
        if isinstance(task, LogProbTask):
            return task.log_probs(hidden, self.weight)
        if isinstance(task, LossTask):
            return task.output(hidden, self.weight)
        output = task.divergence(hidden, self.weight, self.storage.precision)
        self.storage.learn(output.precision)
        return output


def run_with_task(model: nn.Module, head: DistillationHead, task: HeadTask, **inputs: Any) -> Any:
    """One forward of `model` with `task` attached to its head; returns the model's `logits` output."""
    head.task = task
    try:
        return model(**inputs, use_cache=False).logits
    finally:
        head.task = None


def check_head_is_plain(model: nn.Module, head: DistillationHead, name: str, **inputs: Any) -> None:
    """Refuse a model whose logits are more than `hidden @ W.T` (soft cap, scale).

    Args:
        model: the (FSDP-wrapped) model. head: its head. name: what to call it in the error.
        inputs: a small batch for the model's forward.

    Raises:
        Unfit: the model changes its head's output before returning it as logits.
    """
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        logits = run_with_task(model, head, ProbeTask(seen), **inputs)
    expected = seen[0]
    scale = expected.abs().max().clamp_min(1e-6)
    error = ((logits.float() - expected.float()).abs().max() / scale).item()
    if error > 1e-3:
        config = getattr(model, "config", None)
        extras = {
            key: value
            for key in ("final_logit_softcapping", "logit_scale", "logits_scaling")
            if (value := getattr(config, key, None)) is not None
        }
        raise Unfit(
            f"{name}: its logits are not hidden @ W.T (relative difference {error:.2g}; config {extras or 'shows no cause'}); "
            "distillation from hidden states needs a plain head (Qwen, Llama, Mistral, ...); Gemma, Cohere and Granite are not supported"
        )
