"""The facts from which a memory plan is made: the models, one rank's share of the batch, the device."""

from dataclasses import dataclass

from opd.shapes import ModelShape

GIB = 2**30
Wish = bool | None  # None means that the plan decides


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank's part of a training step, in tokens and bytes. Models that only read are teachers, GRPO's reference too.

    Attributes:
        teachers: (model, bytes an entry of its weights and hidden states) of each; they read one after another.
        num_ranks: ranks that share the weights' shards (FSDP2).
        sequence_ranks: ranks that share one sequence (Ulysses): activations and hidden states are a share each.
        adapter_params: entries of a LoRA student's adapters, which alone are trained. None means that all weights are trained.
        compute_bytes: bytes an entry of the student's gathered weights and activations.
        keeps_hidden: the teachers' hidden states wait for the student's head; else the teachers leave log-probabilities.
        row_tokens, response_tokens: longest row, and its longest response.
        teacher_row_tokens: longest row as a teacher reads it.
        rows_per_step, mini_rows: rows of a step, and of one optimizer update, on one data-parallel rank.
        train_tokens: tokens of one micro-batch of the student, at most.
        least_train_tokens: tokens to which the plan lowers `train_tokens` before it gives up what costs more time.
        score_tokens: tokens of one forward without a gradient, at most; with `score_is_planned` the plan may lower it.
        checkpointing: the backward recomputes activations, layer by layer.
        workspace_bytes: bytes of the head's logits.
        rollout_share: share of the device that the rollout server takes while it samples. None means that there is no server.
        rollout_sleeps: the server gives that memory back while training.
        rollout_ranks: ranks that share the server's weights.
        device_bytes: the device's memory. None means that it is not known.
    """

    student: ModelShape
    teachers: tuple[tuple[ModelShape, int], ...] = ()
    num_ranks: int
    sequence_ranks: int = 1
    adapter_params: int | None = None
    compute_bytes: int = 2
    keeps_hidden: bool = True
    row_tokens: int
    response_tokens: int
    teacher_row_tokens: int = 0
    rows_per_step: int
    mini_rows: int
    train_tokens: int
    least_train_tokens: int | None = None
    score_tokens: int = 0
    score_is_planned: bool = False
    checkpointing: Wish
    compiled: bool = False
    workspace_bytes: int = 0
    rollout_share: float | None = None
    rollout_sleeps: bool = True
    rollout_ranks: int = 1
    device_bytes: int | None = None
    offload_teacher: Wish = None
    offload_params: Wish = None
    offload_optimizer: Wish = None

    @property
    def compared(self) -> tuple[tuple[ModelShape, int], ...]:
        """Return (model, bytes an entry) of every teacher whose head the student's reads."""
        return self.teachers if self.keeps_hidden else ()

    @property
    def widest_bytes(self) -> int:
        """Return the bytes of one token's hidden states, of the widest teacher."""
        return max((shape.hidden * size for shape, size in self.compared), default=0)

    @property
    def hidden_bytes(self) -> int:
        """Return the bytes of one step's hidden states, with every response at its longest."""
        return _share(self.rows_per_step * self.response_tokens, self.sequence_ranks) * self.widest_bytes

    @property
    def trained_params(self) -> int:
        return self.student.num_params if self.adapter_params is None else self.adapter_params

    def shared(self, size: int) -> int:
        """Return one rank's share of the bytes of sharded weights."""
        return _share(size, self.num_ranks)


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)
