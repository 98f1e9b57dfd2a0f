"""Defines the facts that a memory plan is made from: the models, one rank's share of the batch, the device."""

from __future__ import annotations

from dataclasses import dataclass

from opd.memory.shapes import ModelShape

GIB = 2**30
Wish = bool | None  # asked for, asked against, or (None) left to the plan


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank's part of a training step, in tokens and bytes. Models that only read are teachers, GRPO's reference too.

    Attributes:
        num_ranks: ranks that share the weights' shards (FSDP2).
        sequence_ranks: ranks that share one sequence (Ulysses): activations and hidden states are a share each.
        adapter_params: entries of a LoRA student's adapters, which alone are trained: the model is kept in the precision that it
            computes in, without gradients and moments; None: all weights are trained.
        compute_bytes: bytes an entry of the student's gathered weights and activations (bf16: 2).
        teacher_bytes: bytes an entry of the teacher's weights and hidden states.
        more_teachers: the others where there are several: (model, bytes an entry) of each. They read one after another.
        row_tokens, response_tokens: longest row, and its longest response.
        keeps_hidden: the teachers' hidden states wait for the student's head, which reads their heads; else they leave log-probabilities.
        teacher_row_tokens: longest row as a teacher reads it, with a prompt of its own; None: as the student does.
        rows_per_step: rows of a step on one data-parallel rank.
        train_tokens: tokens of one micro-batch of the student, at most; with `least_train_tokens` the plan may lower it, down to that
            before it gives up what costs time, and to a row where nothing else helps.
        score_tokens: tokens of one forward without a gradient, at most; `score_is_planned`: the plan may lower it.
        mini_rows: rows of one optimizer update on one data-parallel rank.
        checkpointing: activations are recomputed in the backward, layer by layer: asked for, asked against, or left to the
            plan.
        activation_share: what is kept of a layer's activations without checkpointing (`opd.activation_budget`); None: left
            to the plan.
        compiled: the student's layers are compiled, so that a share of their activations can be kept.
        workspace_bytes: what the head may take for logits. 0 means the plain form, in chunks of `chunk_rows` tokens in fp32.
        memory_key: key of the spec that names the device's memory, where the kind has one.
        one_unit: FSDP gathers and reduces all of the student's weights at once.
        samples: a rollout server answers prompts; supervised fine-tuning has none.
        rollout_share: share of the device that the rollout server takes while it samples; 0 without one on the device.
        rollout_cache_bytes: what its cache takes, where that is given; else the share is whole.
        rollout_sleeps: it gives that memory back while training.
        rollout_ranks: ranks that share the server's weights.
        cache_bytes: what hidden states may take on the device; None: what is left.
        device_bytes: the device's memory; None: not known.
        copies_checkpoints: a save copies the rank's part to host memory and goes on (`checkpoint.overlap`).
        offload_teacher, offload_params, offload_optimizer: asked for, asked against, or left to the plan.
    """

    student: ModelShape
    teacher: ModelShape | None
    num_ranks: int
    sequence_ranks: int = 1
    adapter_params: int | None = None
    compute_bytes: int = 2
    teacher_bytes: int = 2
    more_teachers: tuple[tuple[ModelShape, int], ...] = ()
    keeps_hidden: bool = True
    row_tokens: int
    response_tokens: int
    teacher_row_tokens: int | None = None
    rows_per_step: int
    train_tokens: int
    least_train_tokens: int | None = None
    score_tokens: int
    score_is_planned: bool = False
    mini_rows: int
    checkpointing: Wish
    activation_share: float | None = 1.0
    compiled: bool = False
    workspace_bytes: int
    chunk_rows: int = 256
    memory_key: str = ""
    samples: bool = True
    one_unit: bool = False
    rollout_share: float = 0.0
    rollout_cache_bytes: int | None = None
    rollout_sleeps: bool = True
    rollout_ranks: int = 1
    cache_bytes: int | None = None
    device_bytes: int | None = None
    copies_checkpoints: bool = False
    offload_teacher: Wish = None
    offload_params: Wish = None
    offload_optimizer: Wish = None

    @property
    def teachers(self) -> tuple[tuple[ModelShape, int], ...]:
        """(model, bytes an entry) of every teacher."""
        if self.teacher is None:
            return ()
        return ((self.teacher, self.teacher_bytes), *self.more_teachers)

    @property
    def compared(self) -> tuple[tuple[ModelShape, int], ...]:
        """Return (model, bytes an entry) of every teacher whose head the student's reads."""
        return self.teachers if self.keeps_hidden else ()

    @property
    def widest_bytes(self) -> int:
        """Return the bytes of one token's hidden states, of the widest teacher."""
        return max((shape.hidden * size for shape, size in self.compared), default=0)

    @property
    def trained_params(self) -> int:
        """Entries of the student that are trained."""
        return self.student.num_params if self.adapter_params is None else self.adapter_params

    @property
    def num_products(self) -> int:
        """Of each of the student's weights in a forward and backward: the output, the gradient of the input, and that of the weight,
        which a frozen model has not.
        """
        return 3 if self.adapter_params is None else 2

    def num_micro_batches(self, train_tokens: int) -> int:
        """Micro-batches of one optimizer update, with every row at its longest."""
        return -(-self.mini_rows * self.row_tokens // train_tokens)

    @property
    def hidden_bytes(self) -> int:
        """Hidden states of one step, with every response at its longest, the widest teacher's: what the cache may have to hold."""
        tokens = self.rows_per_step * self.response_tokens
        return -(-tokens // self.sequence_ranks) * self.widest_bytes

    def loss_tokens(self, train_tokens: int) -> int:
        """Response tokens of one micro-batch of the student on this rank."""
        return -(-train_tokens * self.response_tokens // (self.row_tokens * self.sequence_ranks))
