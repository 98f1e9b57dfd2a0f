"""The facts from which a memory plan is made: the models, one rank's share of the batch, the device."""

from dataclasses import dataclass

from opd.shapes import ModelShape

GIB = 2**30
Wish = bool | None  # None means that the plan decides


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank's part of a training step, in tokens and bytes. Models that only read are teachers, GRPO's reference too."""

    student: ModelShape
    teachers: tuple[tuple[ModelShape, int], ...] = ()  # each with bytes an entry; they read one after another
    num_ranks: int  # that share the weights' shards (FSDP2)
    sequence_ranks: int = 1  # that share one sequence (Ulysses): activations and hidden states are a share each
    adapter_params: int | None = None  # entries of a LoRA student, which alone are trained; None means all weights
    compute_bytes: int = 2  # an entry of the student's gathered weights and activations
    keeps_hidden: bool = True  # the teachers leave hidden states for the student's head, else log-probabilities
    row_tokens: int  # the longest row
    response_tokens: int  # its longest response
    teacher_row_tokens: int = 0  # the longest row as a teacher reads it
    rows_per_step: int  # on one data-parallel rank
    mini_rows: int  # of one optimizer update, likewise
    train_tokens: int  # of one micro-batch of the student, at most
    least_train_tokens: int | None = (
        None  # to which the plan lowers train_tokens before it gives up what costs more time
    )
    score_tokens: int = 0  # of one forward without a gradient, at most
    score_is_planned: bool = False  # the plan may lower score_tokens
    checkpointing: Wish  # the backward recomputes activations, layer by layer
    compiled: bool = False
    workspace_bytes: int = 0  # of the head's logits
    rollout_share: float | None = None  # of the device, while the server samples; None means that there is no server
    rollout_sleeps: bool = True  # the server gives that memory back while training
    rollout_ranks: int = 1  # that share the server's weights
    device_bytes: int | None = None  # None means that it is not known
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
        tokens = self.rows_per_step * self.response_tokens
        return -(-tokens // self.sequence_ranks) * self.widest_bytes

    @property
    def trained_params(self) -> int:
        return self.student.num_params if self.adapter_params is None else self.adapter_params

    def shared(self, size: int) -> int:
        """Return one rank's share of the bytes of sharded weights."""
        return -(-size // self.num_ranks)
