"""Defines the sections of the update: optimizer and batches, GRPO, distillation, evaluation, conversion."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from opd.config.base import Count, Dtype, Natural, Offload, Section, Text, _as_tuple

Fraction = Annotated[float, Field(ge=0, lt=1)]
Quantile = Annotated[float, Field(ge=0, le=1)]
Betas = Annotated[
    tuple[Fraction, Fraction],
    BeforeValidator(_as_tuple),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
LossAggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


class Actor(Section):
    """Optimizer, batch split and memory of the trained model."""

    learning_rate: float = Field(default=1e-6, ge=0, description="Peak learning rate of AdamW.")
    lr_schedule: Literal["constant", "cosine"] = Field(default="constant", description="Schedule after warm-up.")
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="Floor of the cosine schedule, as a share of the peak."
    )
    num_warmup_steps: Natural = Field(default=0, description="Linear warm-up in steps.")
    weight_decay: float = Field(default=0.1, ge=0, description="AdamW's weight decay.")
    betas: Betas = Field(default=(0.9, 0.999), description="AdamW's betas.")
    grad_clip: float = Field(default=1.0, gt=0, description="Largest gradient norm.")
    ppo_epochs: Count = Field(default=1, description="Passes over a step's batch.")
    ppo_mini_batch_size: Count = Field(description="Prompts an optimizer step uses; divides train_batch_size.")
    ppo_micro_batch_size_per_gpu: Count = Field(description="Rows a forward and backward takes on a rank.")
    log_prob_micro_batch_size_per_gpu: Count = Field(description="Rows a forward without gradient takes on a rank.")
    use_dynamic_bsz: bool = Field(description="Fill micro-batches up to a token budget instead of a row count.")
    ppo_max_token_len_per_gpu: Count = Field(description="Token budget of a forward and backward on a rank.")
    log_prob_max_token_len_per_gpu: Count = Field(description="Token budget of a forward without gradient on a rank.")
    use_remove_padding: bool = Field(description="Compute on packed tokens instead of padded rows.")
    gradient_checkpointing: bool = Field(description="Recompute activations in the backward to save memory.")
    param_offload: Offload = Field(
        description="Move weights to host memory outside the update; `auto` (distillation): where the plan has no room."
    )
    optimizer_offload: Offload = Field(
        description="Move the optimizer's state to host memory outside the update; `auto` likewise."
    )
    dtype: Dtype = Field(description="Compute precision; master weights and reductions stay float32.")
    torch_compile: bool = Field(
        description="Compile a distillation's decoder layers and verl's log-probability kernels."
    )
    ulysses_sequence_parallel_size: Count = Field(
        default=1,
        description="Ranks that share one sequence: a slice of its tokens each, and inside attention a slice of the heads, "
        "which it must divide.",
    )


class Grpo(Section):
    """The policy-gradient loss of a GRPO run."""

    clip_ratio_low: float = Field(gt=0, lt=1, description="Lower clip of the probability ratio.")
    clip_ratio_high: float = Field(gt=0, description="Upper clip of the probability ratio.")
    clip_ratio_c: float = Field(gt=1, description="Dual-clip bound for negative advantages.")
    kl_loss_coef: float = Field(ge=0, description="Weight of the KL to the start model; 0 builds no reference.")
    kl_loss_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"] = Field(
        default="low_var_kl", description="Estimator of that KL."
    )
    entropy_coeff: float = Field(default=0.0, description="Weight of the entropy bonus.")
    loss_agg_mode: LossAggregation = Field(default="token-mean", description="How token losses become one number.")
    norm_adv_by_std: bool = Field(default=True, description="Divide a group's advantages by their standard deviation.")


Score = Literal["none", "random", "position", "entropy", "entropy_length", "divergence", "soft_or", "q3"]
Mode = Literal["topk", "bottomk", "sample"]
Scope = Literal["rollout", "batch"]
_NEED_ENTROPY: tuple[Score, ...] = ("entropy", "entropy_length", "soft_or", "q3")
_NEED_DIVERGENCE: tuple[Score, ...] = ("divergence", "soft_or", "q3")
NEED_STUDENT = tuple(dict.fromkeys((*_NEED_ENTROPY, *_NEED_DIVERGENCE)))
"""Scores for which the student must have read the tokens before any is chosen."""


class TokenImportance(Section):
    """Which of a response's tokens are trained on; src/opd/importance/README.md has the scores."""

    score: Score = Field(
        default="none",
        description="What a token must have to be kept: `none` keeps all, `random` and `position` are controls, the others go "
        "by the student's entropy and the divergence (TIP).",
    )
    ratio: float = Field(
        default=0.5, ge=0, le=1, description="Share of the tokens that is kept, rounded down for each response."
    )
    mode: Mode = Field(
        default="topk",
        description="Keep the highest scores, the lowest, or draw without replacement in proportion to them; `random` draws.",
    )
    scope: Scope = Field(
        default="rollout", description="What the share is taken of: each response, or all of a step together."
    )
    position: Literal["first", "last"] = Field(
        default="first", description="End of a response that `position` and `entropy_length` keep."
    )
    normalize: Literal["global", "micro"] = Field(
        default="global",
        description="Score all of a step's tokens in a pass of the student of its own, or each micro-batch's inside of its "
        "forward, which needs no such pass.",
    )
    entropy_clip_q: Quantile = Field(
        default=0.98,
        description="Quantile that cuts off the entropy before `soft_or` and `q3` scale it to [0, 1]; 1: uncut.",
    )
    divergence_clip_q: Quantile | None = Field(
        default=None, description="Quantile that cuts off the divergence before `soft_or` scales it; unset: uncut."
    )

    @property
    def in_head(self) -> bool:
        """Whether the choice is made within each micro-batch, by the student's head."""
        return self.normalize == "micro" and self.needs_student

    @property
    def needs_student(self) -> bool:
        """Whether the student must have read the tokens before any is chosen."""
        return self.score in NEED_STUDENT

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher must have read them too."""
        return self.score in _NEED_DIVERGENCE


class Importance(Section):
    """How much of a step's responses counts."""

    tokens: TokenImportance = Field(default_factory=TokenImportance, description="Which tokens are trained on.")


class Opd(Section):
    """The divergence that is distilled."""

    loss_type: Literal["reverse_kl", "forward_kl", "jsd"] = Field(
        default="reverse_kl", description="Divergence a token."
    )
    beta: float | None = Field(
        default=None, description="Weight of the teacher in the JSD's mixture, 0 < beta < 1; JSD only."
    )
    chunk_size: Count = Field(
        default=256,
        description="Tokens whose logits exist at once on the plain path (CPU, fp32, other GPUs); the fused one goes by workspace_gib.",
    )
    max_length: Count = Field(description="Longest prompt + response in tokens.")
    cache_gib: float | None = Field(
        default=None,
        ge=0,
        description="GiB of GPU memory for the teacher's hidden states, the rest waits in pinned host memory; "
        "unset: what the memory plan leaves.",
    )
    gpu_memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="GiB of one GPU's memory that the plan may count on; unset: that of `cluster.gpu.type`, or the GPU's.",
    )
    workspace_gib: float = Field(
        default=1.1, gt=0, description="GiB of GPU memory for the logits of the fused head; more is faster."
    )
    vocab_parallel_size: Count = Field(
        default=1, description="Ranks that share the two output heads by vocabulary, and each other's tokens."
    )
    activation_budget: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of a compiled layer's activations that its backward finds again instead of recomputing; for "
        "`actor.gradient_checkpointing: false`.",
    )
    max_unshared_mass: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Largest mean probability of a step on tokens that only one model's tokenizer has; above it the run ends.",
    )
    reward_beta: float | None = Field(
        default=None,
        gt=0,
        description="Weight responses by n * softmax(reward / reward_beta) within a prompt; unset: equally.",
    )
    importance: Importance = Field(default_factory=Importance, description="How much of a step's responses counts.")


class Eval(Section):
    """What an evaluation asks, beyond the rollout's validation sampling."""

    instruction_variant: Literal["boxed", "dapo", "none"] = Field(
        default="boxed", description="Instruction the prompts carry; chooses files and default reward."
    )
    checkpoint: Text | None = Field(
        default=None, description="Checkpoint folder (global_step_N) to load over `model.path`."
    )
    save_generations: bool = Field(default=True, description="Keep every answer as parquet.")


class Convert(Section):
    """Which checkpoint becomes which Hugging Face folder."""

    checkpoint: Text = Field(description="Checkpoint folder, with or without the trailing /actor; or a store URL.")
    target: Text | None = Field(
        default=None,
        description="Folder or store URL to write; unset: `global_step_N-huggingface` beside the checkpoint.",
    )
    dtype: Literal["checkpoint", "base", "bf16"] = Field(
        default="base", description="Precision of the written weights."
    )
    base_model: Text | None = Field(
        default=None,
        description="Model that `dtype: base` follows; unset: the run's own (a checkpoint of plain verl names none: bf16).",
    )
    verify: bool = Field(default=True, description="Compare logits with the checkpoint's on a few prompts.")
