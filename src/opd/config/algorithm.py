"""Defines the sections of the update: optimizer and batches, GRPO, distillation, evaluation, conversion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from opd.config.base import Count, Dtype, Natural, Offload, Paths, Section, Text, _as_tuple
from opd.config.errors import Problem

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
Reduction = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]


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
    gradient_checkpointing: Offload = Field(
        description="Recompute activations in the backward to save memory; `auto` (distillation): where the plan has no room "
        "for them."
    )
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


class Policy(Section):
    """A policy gradient beside the divergence: GRPO's advantages and verl's clipped loss."""

    weight: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the policy loss in the loss, on responses' scores; 0: there is none.",
    )
    clip_ratio_low: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Lower clip of the probability ratio, which is 1 where a step has one update.",
    )
    clip_ratio_high: float = Field(default=0.2, gt=0, description="Upper clip of that ratio.")
    clip_ratio_c: float = Field(default=3.0, gt=1, description="Dual-clip bound for negative advantages.")
    norm_adv_by_std: bool = Field(default=True, description="Divide a prompt's advantages by their standard deviation.")


Score = Literal["none", "random", "position", "entropy", "divergence", "soft_or", "q3"]
Mode = Literal["topk", "bottomk", "sample"]
Scope = Literal["rollout", "batch"]
Position = Literal["first", "last"]
_NEED_ENTROPY: tuple[Score, ...] = ("entropy", "soft_or", "q3")
_NEED_DIVERGENCE: tuple[Score, ...] = ("divergence", "soft_or", "q3")


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
        description="Keep the highest scores, the lowest, or draw without replacement in proportion to them (`random` draws).",
    )
    scope: Scope = Field(
        default="rollout", description="What the share is taken of: each response, or all of a step together."
    )
    position: Position = Field(default="first", description="End of a response that `position` keeps.")
    entropy_clip_q: Quantile = Field(
        default=0.98,
        description="Quantile that cuts off the entropy before `soft_or` and `q3` scale it to [0, 1]; 1: uncut.",
    )
    divergence_clip_q: Quantile | None = Field(
        default=None, description="Quantile that cuts off the divergence before `soft_or` scales it; unset: uncut."
    )

    @property
    def needs_student(self) -> bool:
        """Whether the student must have read the tokens before any is chosen."""
        return self.score in (*_NEED_ENTROPY, *_NEED_DIVERGENCE)

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher must have read them too."""
        return self.score in _NEED_DIVERGENCE


class Recompute(Section):
    """When the run measures its prompts' pass rates again, with the student as it is then."""

    every: Count | None = Field(default=None, description="After every so many steps; unset: not by steps.")
    at_stages: bool = Field(default=False, description="Before the first step of each stage but the first.")
    num_samples: Count = Field(
        default=8,
        description="Answers to each prompt, sampled as in training; the pass rate is the share of right ones.",
    )

    @property
    def is_asked_for(self) -> bool:
        """Whether the pass rates change in the course of a run."""
        return self.every is not None or self.at_stages


class ProblemImportance(Section):
    """How much each training prompt counts; src/opd/importance/README.md has the weights."""

    weights: Literal["none", "competence", "moment_matched", "hard_filter"] = Field(
        default="none",
        description="A prompt's weight by its pass rate p: `none` weighs all alike, `competence` p^alpha (1 - p)^beta, "
        "`moment_matched` the same with exponents from the spread of the rates, `hard_filter` 1 where 0.2 <= p <= 0.8, else 0.",
    )
    pass_rates: Text | None = Field(
        default=None, description="File or store URL of the pass rates, `pass_rates.parquet` of a run of kind passrate."
    )
    alpha: float = Field(default=1.0, ge=0, description="Exponent of the pass rate, for `competence`.")
    beta: float = Field(default=1.0, ge=0, description="Exponent of the failure rate, for `competence`.")
    drop: bool = Field(
        default=True,
        description="Leave prompts of weight 0 out of the data; the others keep their weights. False: they are answered too.",
    )
    recompute: Recompute = Field(
        default_factory=Recompute, description="When the run measures the pass rates again; by default never."
    )

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between weights and pass rates."""
        section, again = "opd.importance.problems", self.recompute
        competence = f"set {section}.weights: competence"
        if self.weights != "none" and self.pass_rates is None:
            rule = f"weights {self.weights} follow from the prompts' pass rates"
            fix = "name the file: `pass_rates.parquet` of a run of kind passrate"
            yield Problem(path="pass_rates", rule=rule, fix=fix)
        if self.weights == "none" and self.pass_rates is not None:
            rule, fix = (
                f"pass rates are read for weights only, and {section}.weights is none",
                f"{competence}, or remove the key",
            )
            yield Problem(path="pass_rates", value=self.pass_rates, rule=rule, fix=fix)
        for key, exponent in (("alpha", self.alpha), ("beta", self.beta)):
            if self.weights != "competence" and exponent != 1:
                rule = f"an exponent is given for weights: competence only; they are {self.weights}"
                yield Problem(path=key, value=exponent, rule=rule, fix=f"{competence}, or remove the key")
        if again.is_asked_for and self.weights == "none":
            fix = f"{competence}, or remove {section}.recompute"
            yield Problem(path="weights", value="none", rule="pass rates are measured again for weights only", fix=fix)
        if again.is_asked_for and self.drop:
            rule = "prompts of weight 0 that have left the data could not come back when pass rates are measured again"
            yield Problem(path="drop", value=True, rule=rule, fix=f"set drop: false, or remove {section}.recompute")
        least = 3 if self.weights == "moment_matched" else 2
        if again.is_asked_for and again.num_samples < least:
            fix = f"set {section}.recompute.num_samples: 8, or at least {least}"
            rule = "no weight could follow from pass rates of so few answers"
            yield Problem(path="recompute.num_samples", value=again.num_samples, rule=rule, fix=fix)


class Importance(Section):
    """How much of a step's responses counts."""

    tokens: TokenImportance = Field(default_factory=TokenImportance, description="Which tokens are trained on.")
    problems: ProblemImportance = Field(
        default_factory=ProblemImportance, description="How much each training prompt counts."
    )


LossType = Literal["reverse_kl", "forward_kl", "jsd", "sampled_reverse_kl", "topk_reverse_kl"]
"""The last two are what others take in the place of the reverse KL, to compare it with: `opd.losses.divergences`."""


def _share_or_step(value: float) -> float:
    if value >= 1 and not value.is_integer():
        raise ValueError("from 1 on it is the number of a step, a whole number; a share of the steps is below 1")
    return value


RunPoint = Annotated[
    float,
    Field(gt=0),
    AfterValidator(_share_or_step),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "integer", "minimum": 1}]}
    ),
]
"""A place in a run: below 1 a share of its steps, rounded down; from 1 on the number of a step."""


class Stage(Section):
    """A part of a run with a loss and rollouts of its own; src/opd/importance/README.md has an example."""

    until: RunPoint | None = Field(
        default=None,
        description="Its last step: a number, or below 1 a share of the run's steps; the last stage has none.",
    )
    loss_type: LossType | None = Field(default=None, description="Divergence a token; unset: opd.loss_type.")
    beta: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Weight of the teacher in the JSD's mixture, given with loss_type jsd only.",
    )
    divergence_weight: float | None = Field(
        default=None, ge=0, description="Weight of the divergence; unset: opd.divergence_weight."
    )
    policy_weight: float | None = Field(
        default=None, ge=0, description="Weight of the policy loss; unset: opd.policy.weight."
    )
    weight_schedule: Literal["constant", "linear"] = Field(
        default="constant",
        description="The two weights from the stage's first step on, or reached evenly by its last step from those of the stage "
        "before, in the first stage from those of `opd`.",
    )
    rollouts: Literal["student", "teacher"] = Field(
        default="student",
        description="Whose answers are trained on: the student's, sampled in the step, or the teacher's of opd.teacher_answers.",
    )
    optimizer: Literal["keep", "reset"] = Field(
        default="keep", description="AdamW's moments at the stage's first step: as they are, or zero."
    )
    lr_schedule: Literal["keep", "restart"] = Field(
        default="keep",
        description="The learning rate goes on along its schedule, or begins one over this and the following steps, warm-up "
        "included.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem where `beta` and the stage's own loss do not match."""
        if (self.beta is not None) != (self.loss_type == "jsd"):
            rule = "beta weighs the mixture of the stage's own loss_type jsd, and is given with it"
            fix = "set beta: 0.5 with loss_type: jsd, and none with another"
            yield Problem(path="beta", value=self.beta, rule=rule, fix=fix)


class Horizon(Section):
    """How much of each response counts, from its start."""

    tokens: Count | None = Field(
        default=None, description="First tokens of a response that are trained on, in the first step; unset: all."
    )
    applies: Literal["train", "generate"] = Field(
        default="train",
        description="Leave the others out of the loss, or do not generate them either (in training; validation is whole).",
    )
    grow_until: RunPoint | None = Field(
        default=None,
        description="Step, or below 1 share of the run's steps, by which it has grown evenly from `tokens` to "
        "data.max_response_length; unset: it stays.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem for a horizon that grows from nothing."""
        if self.grow_until is not None and self.tokens is None:
            rule, fix = "a horizon grows from its tokens in the first step", "set opd.horizon.tokens, or remove the key"
            yield Problem(path="grow_until", value=self.grow_until, rule=rule, fix=fix)


class Opd(Section):
    """The divergence that is distilled."""

    loss_type: LossType = Field(
        default="reverse_kl",
        description="Divergence a token, over the whole vocabulary; `sampled_reverse_kl` (the sampled token's log ratio, with a "
        "baseline) and `topk_reverse_kl` (see `top_k`) are there to be compared with it.",
    )
    beta: float | None = Field(
        default=None, description="Weight of the teacher in the JSD's mixture, 0 < beta < 1; JSD only."
    )
    top_k: Count | None = Field(
        default=None,
        description="Tokens of the teacher that loss_type topk_reverse_kl compares one by one; all others together are one more.",
    )
    divergence_weight: float = Field(
        default=1.0, ge=0, description="Weight of the divergence in the loss; stages may have their own."
    )
    policy: Policy = Field(
        default_factory=Policy,
        description="A policy gradient on the responses' scores in the same update; src/opd/trainer/README.md says how.",
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
    activation_budget: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of a compiled layer's activations that its backward finds again instead of recomputing, without "
        "gradient checkpointing; unset: what the memory plan has room for, from all to a third.",
    )
    read_tokens: Count | None = Field(
        default=None,
        description="Tokens that a GPU reads in one forward without a gradient (the teacher's, and the student's that scores "
        "tokens); unset: 32,768, or fewer where the memory plan has no room. On a CPU it is actor.log_prob_* if this is unset.",
    )
    train_tokens: Count | None = Field(
        default=None,
        description="Tokens, or one longer row, of a forward and backward on a GPU; unset: as many as keep it busy, or fewer where the "
        "memory plan has no room. On a CPU, and on padded rows, it is actor.ppo_* if this is unset; elsewhere those are not read.",
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
    loss_agg_mode: Reduction = Field(
        default="token-mean",
        description="How an update's weighted token divergences become one number: their mean over all tokens, the mean over "
        "responses of each one's mean, or of each one's sum.",
    )
    importance: Importance = Field(default_factory=Importance, description="How much of a step's responses counts.")
    stages: tuple[Stage, ...] = Field(
        default=(),
        description="Parts of the run with a loss and rollouts of their own, by the keys below (src/opd/importance/README.md explains "
        "them); empty: the run is one part.",
    )
    teacher_answers: Paths | None = Field(
        default=None,
        description="Parquet files of the teacher's answers to the training prompts: `eval/generations.parquet` of its evaluation.",
    )
    horizon: Horizon = Field(default_factory=Horizon, description="How much of each response counts.")
    num_kept_rollouts: Natural = Field(
        default=4,
        description="Rollouts kept token by token for `opdctl report`, with the density of the step's tokens: of the first step, "
        "of the last, and every trainer.save_freq steps; 0: none.",
    )

    @property
    def has_policy(self) -> bool:
        """Whether some step has a policy gradient."""
        return self.policy.weight > 0 or any(stage.policy_weight for stage in self.stages)

    @property
    def without_kernels(self) -> tuple[str, ...]:
        """What of the loss the fused CUDA kernels do not have, as a person calls it; the whole head then runs without them."""
        losses = (self.loss_type, *(stage.loss_type for stage in self.stages))
        lacking = [name for name in dict.fromkeys(losses) if name in ("sampled_reverse_kl", "topk_reverse_kl")]
        return (*(["the policy gradient"] if self.has_policy else []), *lacking)

    def check(self) -> Iterator[Problem]:
        """Yield a problem where `beta` and the loss do not match."""
        if self.beta is None:
            return
        if self.loss_type != "jsd":
            rule = f"beta weighs the mixture of jsd; loss_type {self.loss_type} has none"
            fix = "remove opd.beta, or set opd.loss_type: jsd"
            yield Problem(path="beta", value=self.beta, rule=rule, fix=fix)
        elif not 0 < self.beta < 1:
            yield Problem(path="beta", value=self.beta, rule="jsd needs 0 < beta < 1", fix="use 0.5, or remove the key")


MESSAGES = "messages"
"""The column of whole conversations, answers included; supervised fine-tuning on given answers needs no other."""

TOOLS = "tools"
"""The column beside it that names the tools of a conversation: their list as JSON text, or null."""


class Sft(Section):
    """The answers that supervised fine-tuning learns."""

    teacher_answers: Paths | None = Field(
        default=None,
        description="Parquet files of a teacher's answers to the prompts of data.train, and of data.val where the run validates, "
        "`eval/generations.parquet` of its evaluation; unset: the data are conversations (column `messages`).",
    )


class Eval(Section):
    """What an evaluation asks, beyond the rollout's validation sampling."""

    instruction_variant: Literal["boxed", "dapo", "none"] = Field(
        default="boxed", description="Instruction the prompts carry; chooses files and default reward."
    )
    checkpoint: Text | None = Field(
        default=None, description="Checkpoint folder (global_step_N) to load over `model.path`."
    )
    save_generations: bool = Field(
        description="Keep the texts of every prompt and answer beside its score; false: the scores only."
    )


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
    trust_remote_code: bool = Field(
        default=False,
        description="Run the code of the model that lies beside the checkpoint; whoever can write the checkpoint can change it.",
    )
    verify: bool = Field(default=True, description="Compare logits with the checkpoint's on a few prompts.")
