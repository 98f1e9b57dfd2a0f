"""The sections of the update: optimizer and batches, GRPO, distillation, evaluation, conversion."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from opd.experiment.base import Section, key, named
from opd.experiment.errors import Problem
from opd.experiment.types import Count, Dtype, Extras, Natural, Offload, Paths, Positive, Text, Weight

Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Open = Annotated[float, Field(gt=0, lt=1)]
AboveOne = Annotated[float, Field(gt=1)]
Reduction = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
LossAggregation = Literal[Reduction, "token-sum", "seq-mean-token-sum-norm"]
Cut = Literal["plan", "given"]
KlLoss = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"]
_LOSSES = ("reverse_kl", "forward_kl", "jsd", "skew_kl", "akl", "sampled_reverse_kl", "topk_reverse_kl")
LossType = Annotated[str, named(*_LOSSES)]
RunPoint = Open | Count
"""A place in a run: a share of its steps, rounded down, or the number of a step."""
MESSAGES = "messages"  # the column of whole conversations, all that supervised fine-tuning on given answers needs
TOOLS = "tools"  # the column of a conversation's tools: their list as JSON text, or null


class Actor(Section):
    learning_rate: Weight = key("Peak learning rate of AdamW. Default: 1e-6; with model.lora 1e-5.")
    lr_schedule: Literal["constant", "cosine"] = key("Schedule after warm-up.", "constant")
    min_lr_ratio: Share = key("Floor of the cosine schedule, as a share of the peak.", 0.0)
    num_warmup_steps: Natural = key("Linear warm-up in steps.", 0)
    weight_decay: Weight = key("AdamW's weight decay.", 0.1)
    betas: tuple[Fraction, Fraction] = key("AdamW's betas.", (0.9, 0.999))
    grad_clip: Positive = key("Largest gradient norm.", 1.0)
    ppo_epochs: Count = key("Passes over a step's batch.", 1)
    ppo_mini_batch_size: Count = key("Prompts of an optimizer step. Default: a quarter of the batch that ranks share.")
    ppo_micro_batch_size_per_gpu: Count = key("Rows of a forward and backward on a rank. Default: 4; eval: 2.")
    log_prob_micro_batch_size_per_gpu: Count = key("Rows of a forward without gradient on a rank. Default: the same.")
    use_dynamic_bsz: bool = key("Cut by token budgets, not by rows. Default: true for recipe grpo, for budgets alone.")
    ppo_max_token_len_per_gpu: Count = key("Tokens of a forward and backward. Default: 2 x (prompt + response).")
    log_prob_max_token_len_per_gpu: Count = key("Tokens of one without gradient. Default: 3 x (prompt + response).")
    cut_updates: Cut = key("Micro-batches by the memory plan, or by the sizes given. Default: given, with ppo_* sizes.")
    cut_reads: Cut = key("The same of forwards without a gradient. Default: given, with log_prob_* sizes.")
    use_remove_padding: bool = key("Compute on packed tokens instead of padded rows. Default: true; on a CPU false.")
    gradient_checkpointing: Offload = key("Recompute activations; `auto`: if it must. Default: auto; on a CPU false.")
    param_offload: Offload = key("Keep weights in host memory outside the update. Default: auto; on a CPU false.")
    optimizer_offload: Offload = key("Keep AdamW's state in host memory likewise. Default: auto; on a CPU false.")
    dtype: Dtype = key("Compute precision; master weights and reductions stay float32. Default: bf16; on a CPU fp32.")
    torch_compile: bool = key("Compile decoder layers. Default: true; on a CPU and with model.lora: false.")
    ulysses_sequence_parallel_size: Count = key("Ranks that share one sequence; divides the number of heads.", 1)


class Grpo(Section):
    clip_ratio_low: Open = key("Lower clip of the probability ratio.", 0.2)
    clip_ratio_high: Positive = key("Upper clip of the probability ratio. Default: 0.28; grpo-native, -no-kl: 0.2.")
    clip_ratio_c: AboveOne = key("Dual-clip bound for negative advantages. Default: 10; grpo-native, -no-kl: 3.")
    kl_loss_coef: Weight = key("Weight of the KL to the start model; 0: no reference. Default: 0; grpo-native: 0.001.")
    kl_loss_type: KlLoss = key("Estimator of that KL.", "low_var_kl")
    entropy_coeff: float = key("Weight of the entropy bonus.", 0.0)
    loss_agg_mode: LossAggregation = key("How token losses become one number.", "token-mean")
    norm_adv_by_std: bool = key("Divide a group's advantages by their standard deviation.", True)


class Policy(Section):
    weight: Weight = key("Weight of the policy loss in the loss, on responses' scores; 0: there is none.", 0.0)
    clip_ratio_low: Open = key("Lower clip of the probability ratio, which is 1 where a step has one update.", 0.2)
    clip_ratio_high: Positive = key("Upper clip of that ratio.", 0.2)
    clip_ratio_c: AboveOne = key("Dual-clip bound for negative advantages.", 3.0)
    norm_adv_by_std: bool = key("Divide a prompt's advantages by their standard deviation.", True)


# By the models that a score reads: none, the student, or the teacher as well.
_SCORES = {"none": 0, "random": 0, "position": 0, "entropy": 1, "divergence": 2, "soft_or": 2, "q3": 2}
Score = Annotated[str, named(*_SCORES)]
ProblemWeights = Annotated[str, named("none", "competence", "moment_matched", "hard_filter")]


class TokenImportance(Section):
    score: Score = key("Score by which tokens are kept, or your own as package.module:function.", "none")
    ratio: Share = key("Share of the tokens that is kept, rounded down for each response.", 0.5)
    mode: Literal["topk", "bottomk", "sample"] = key("The highest scores, the lowest, or drawn by them.", "topk")
    scope: Literal["rollout", "batch"] = key("The share is of each response, or of all of a step.", "rollout")
    position: Literal["first", "last"] = key("End of a response that `position` keeps.", "first")
    entropy_clip_q: Share = key("Quantile that cuts off the entropy for `soft_or` and `q3`; 1: uncut.", 0.98)
    divergence_clip_q: Share | None = key("Quantile that cuts off the divergence for `soft_or`; unset: uncut.", None)

    @property
    def needs_student(self) -> bool:
        return _SCORES.get(self.score, 2) > 0

    @property
    def needs_teacher(self) -> bool:
        return _SCORES.get(self.score, 2) > 1


class ProblemImportance(Section):
    weights: ProblemWeights = key("Weight of a prompt by its pass rate, or your own as package.module:name.", "none")
    pass_rates: Text | None = key("File or store URL of `pass_rates.parquet` of a run of kind passrate.", None)
    alpha: Weight = key("Exponent of the pass rate, for `competence`.", 1.0)
    beta: Weight = key("Exponent of the failure rate, for `competence`.", 1.0)
    drop: bool = key("Leave prompts of weight 0 out of the data; false: they are answered too.", True)

    def check(self) -> Iterator[Problem]:
        if self.weights != "none" and self.pass_rates is None:
            rule = f"weights {self.weights} follow from the prompts' pass rates"
            yield self.broken("pass_rates", rule, "name the file: `pass_rates.parquet` of a run of kind passrate")


class Importance(Section):
    tokens: TokenImportance = key("Which tokens are trained on.", TokenImportance)
    problems: ProblemImportance = key("How much each training prompt counts.", ProblemImportance)


class Stage(Section):
    until: RunPoint | None = key("Its last step, or below 1 a share of the run's steps; the last stage has none.", None)
    loss_type: LossType | None = key("Divergence a token; unset: opd.loss_type.", None)
    loss_params: Extras = key("Parameters of the stage's own loss_type.", dict)
    beta: Open | None = key("Weight of the teacher in the JSD's mixture, given with loss_type jsd only.", None)
    divergence_weight: Weight | None = key("Weight of the divergence; unset: opd.divergence_weight.", None)
    policy_weight: Weight | None = key("Weight of the policy loss; unset: opd.policy.weight.", None)
    rollouts: Literal["student", "teacher"] = key("Author of the answers; opd.teacher_answers has them.", "student")

    def check(self) -> Iterator[Problem]:
        if self.loss_params and self.loss_type is None:
            yield self.broken("loss_params", "they belong to the stage's own loss_type", "set it, or opd.loss_params")
        if (self.beta is not None) != (self.loss_type == "jsd"):
            rule = "beta weighs the mixture of the stage's own loss_type jsd, and is given with it"
            yield self.broken("beta", rule, "set beta: 0.5 with loss_type: jsd, and none with another")


class Horizon(Section):
    tokens: Count | None = key("First tokens of a response that are trained on; unset: all.", None)
    applies: Literal["train", "generate"] = key("Mask the others, or do not generate them either.", "train")


class Opd(Section):
    loss_type: LossType = key("Divergence a token, or your own as package.module:function.", "reverse_kl")
    loss_params: Extras = key("Parameters of skew_kl, akl, sampled_reverse_kl and a function of yours.", dict)
    beta: Open | None = key("Weight of the teacher in the JSD's mixture. Default: 0.5 with loss_type jsd.", None)
    top_k: Count | None = key("Tokens that topk_reverse_kl compares one by one; all others are one more.", None)
    divergence_weight: Weight = key("Weight of the divergence in the loss; stages may have their own.", 1.0)
    policy: Policy = key("A policy gradient on the responses' scores in the same update.", Policy)
    chunk_size: Count = key("Tokens whose logits exist at once on the plain path (CPU, fp32, other GPUs).", 256)
    max_length: Count = key("Longest prompt + response in tokens. Default: their sum in `data`.")
    gpu_memory_gib: Positive | None = key("GiB of one GPU that the memory plan may use; unset: the GPU's.", None)
    workspace_gib: Positive | None = key("GiB of a GPU for logits; unset: 1.3 with fused kernels, else 2.6.", None)
    read_tokens: Count | None = key("Tokens of a forward without a gradient on a GPU; unset: by the memory plan.", None)
    train_tokens: Count | None = key("Tokens of a forward and backward on a GPU; unset: by the memory plan.", None)
    max_unshared_mass: Share = key("Largest mean probability of tokens that only one model's tokenizer has.", 0.05)
    reward_beta: Positive | None = key("Weigh responses by n * softmax(reward / reward_beta) within a prompt.", None)
    loss_agg_mode: Reduction = key("How an update's weighted token divergences become one number.", "token-mean")
    importance: Importance = key("How much of a step's responses counts.", Importance)
    stages: tuple[Stage, ...] = key("Parts of the run with a loss and rollouts of their own; empty: one part.", ())
    teacher_answers: Paths | None = key("The teacher's answers: `eval/generations.parquet` of its evaluation.", None)
    horizon: Horizon = key("How much of each response counts.", Horizon)
    num_kept_rollouts: Natural = key("Rollouts of a kept step, token by token; 0: none.", 4)

    @property
    def has_policy(self) -> bool:
        return self.policy.weight > 0 or any(stage.policy_weight for stage in self.stages)

    def check(self) -> Iterator[Problem]:
        types = {self.loss_type, *(stage.loss_type for stage in self.stages)}
        for name, loss in (("beta", "jsd"), ("top_k", "topk_reverse_kl")):
            if getattr(self, name) is not None and loss not in types:
                rule = f"it belongs to loss_type {loss}; loss_type {self.loss_type} has none"
                yield self.broken(name, rule, f"remove opd.{name}, or set opd.loss_type: {loss}")
        if self.top_k is None and "topk_reverse_kl" in types:
            yield self.broken("top_k", "the tokens of topk_reverse_kl need a number", "set it to 64, or use reverse_kl")
        if self.loss_params and self.loss_type in ("reverse_kl", "forward_kl", "jsd", "topk_reverse_kl"):
            fix = "remove the key; jsd takes opd.beta and topk_reverse_kl opd.top_k"
            yield self.broken("loss_params", f"loss_type {self.loss_type} takes none of them", fix)
        if not self.stages and self.divergence_weight == self.policy.weight == 0:
            fix = "set it to 1, or opd.policy.weight above 0"
            yield self.broken("divergence_weight", "the loss has weight 0: nothing is learnt", fix)


class Sft(Section):
    teacher_answers: Paths | None = key("Teacher's `eval/generations.parquet`; unset: data.train has `messages`.", None)


class Eval(Section):
    instruction_variant: Literal["boxed", "dapo", "none"] = key("Instruction of the prompts; chooses files.", "boxed")
    checkpoint: Text | None = key("Checkpoint folder (global_step_N) to load over `model.path`.", None)
    save_generations: bool = key("Keep the texts, not the scores only. Default: true; passrate: false.")


def converted(checkpoint: str) -> str:
    """Return where a checkpoint's model goes unless `convert.target` says another place."""
    return f"{checkpoint}-huggingface"


class Convert(Section):
    checkpoint: Text = key("Checkpoint folder, with or without the trailing /actor; or a store URL.")
    target: Text | None = key("Folder or store URL to write; unset: `global_step_N-huggingface`.", None)
    dtype: Literal["checkpoint", "base", "bf16"] = key("Precision of the written weights.", "base")
    trust_remote_code: bool = key("Run the code of the model in the checkpoint's folder.", False)
    verify: bool = key("Load the result and compare it with the checkpoint.", True)
