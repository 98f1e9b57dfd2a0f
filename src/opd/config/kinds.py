"""Defines the kinds of experiment and the sections that each one has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from opd.config.algorithm import Actor, Convert, Eval, Grpo, Opd, Sft
from opd.config.base import ENV_PATTERN, MAX_NAME_CHARS, NAME_PATTERN, Kind, Recipe, Section, Text
from opd.config.prompt_template import column_names
from opd.config.running import Checkpoint, Output, RunTrainer, Store, Trainer
from opd.config.sections import Agent, Data, Model, Reward, Rollout, Route, Teacher, TeacherName

EnvName = Annotated[str, Field(pattern=ENV_PATTERN)]
Update = Annotated[Actor, Field(description="Optimizer, batch split, memory.")]
RawOverrides = Annotated[
    tuple[Text, ...], Field(description="Raw Hydra overrides for verl keys that the spec does not name.")
]
MAX_SEED = 2**31 - 1
StageName = Annotated[str, Field(pattern=r"^[a-z]([_a-z0-9]*[a-z0-9])?$")]


class BaseSpec(Section):
    """What every kind has."""

    kind: Kind = Field(description="Kind of experiment.")
    name: str = Field(
        pattern=NAME_PATTERN,
        max_length=MAX_NAME_CHARS,
        description="Name of the run where it is not installed by Helm (there the release name counts); its id in the store.",
    )
    seed: int = Field(default=42, ge=0, le=MAX_SEED, description="Seed of data order, sampling and initialisation.")
    store: Store = Field(description="The object store.")
    output: Output = Field(default_factory=Output, description="Local files.")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="Environment variables of every process of the run; never secrets."
    )


class RunSpec(BaseSpec):
    """What every kind that starts verl has."""

    device: Literal["cuda", "cpu"] = Field(default="cuda", description="Device of trainer and rollout.")
    model: Model = Field(description="The student, or the model that is trained or evaluated.")
    data: Data = Field(description="Prompts, lengths, batch size.")
    actor: Update
    trainer: RunTrainer = Field(description="Resources and logging.")

    @property
    def trains(self) -> bool:
        """True for a kind that trains."""
        return True

    @property
    def row_length(self) -> int:
        """Tokens of the longest row."""
        return self.data.max_prompt_length + self.data.max_response_length

    @property
    def num_ranks(self) -> int:
        """Ranks of the run."""
        return self.trainer.nnodes * self.trainer.gpus_per_node

    @property
    def num_sharing(self) -> int:
        """Ranks that share a sequence."""
        return self.actor.ulysses_sequence_parallel_size

    @property
    def num_groups(self) -> int:
        """Data-parallel ranks."""
        return max(1, self.num_ranks // self.num_sharing)

    @property
    def num_samples(self) -> int:
        """Rows of a prompt in training."""
        return 1

    @property
    def step_rows(self) -> int:
        """Rows of a step."""
        return self.data.train_batch_size * self.num_samples

    @property
    def is_packed(self) -> bool:
        """True where work and memory go with the tokens: a GPU, no padding, attention without a matrix of all tokens by all."""
        packs = self.model.attn_implementation in ("varlen", "flash_attention_2")
        return self.device == "cuda" and self.actor.use_remove_padding and packs

    @property
    def reads_by_actor(self) -> bool:
        """True where actor.log_prob_* cut a forward without a gradient."""
        return True

    @property
    def update_by_actor(self) -> bool:
        """True where actor.ppo_* cut an update."""
        return True


class SamplingSpec(RunSpec):
    """What every kind has whose model answers prompts."""

    rollout: Rollout = Field(description="How responses are sampled.")
    reward: Reward = Field(description="The function that scores a response.")
    overrides: RawOverrides = ()

    @property
    def num_samples(self) -> int:
        """Rows of a prompt in training."""
        return self.rollout.num_samples

    @property
    def carried(self) -> tuple[int, int]:
        """Under the schedule carry: answers that are generated at once, and the largest age of their tokens in updates."""
        rows, rollout = self.step_rows, self.rollout
        in_flight = 2 * rows if rollout.in_flight is None else rollout.in_flight
        return in_flight, 8 * -(-in_flight // rows) if rollout.max_age is None else rollout.max_age


class SftSpec(RunSpec):
    """Supervised fine-tuning: cross-entropy on given answers. Nothing is sampled or scored."""

    trainer: Trainer = Field(description="Length and rhythm, resources, logging.")
    overrides: RawOverrides = ()
    kind: Literal["sft"] = Field(description="Kind of experiment.")
    sft: Sft = Field(default_factory=Sft, description="Where the answers come from.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Which checkpoints stay.")


class GrpoSpec(SamplingSpec):
    """GRPO in three recipes, through verl's own trainer."""

    kind: Literal["grpo"] = Field(description="Kind of experiment.")
    recipe: Recipe = Field(
        default="grpo",
        description="`grpo`: DAPO style; `grpo-native`: verl's own clip with a KL loss; `grpo-native-no-kl`: without.",
    )
    grpo: Grpo = Field(description="The policy-gradient loss.")
    trainer: Trainer = Field(description="Length and rhythm, resources, logging.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Which checkpoints stay.")
    agent: Agent | None = Field(default=None, description="Multi-turn rollouts with tools; unset: single answers.")


class DistillationSpec(SamplingSpec):
    """What every kind has that distils."""

    teacher: Teacher | None = Field(default=None, description="The teacher of all rows.")
    teachers: dict[TeacherName, Teacher] = Field(
        default_factory=dict,
        description="Several teachers in its place: a name for each, with the keys of `teacher`.",
    )
    route: Route = Field(default_factory=Route, description="Which of several teachers reads a row.")
    opd: Opd = Field(description="The divergence.")
    trainer: Trainer = Field(description="Length and rhythm, resources, logging.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Which checkpoints stay.")

    @property
    def named_teachers(self) -> dict[str, Teacher]:
        """Every teacher by its key: `teacher`, or `teachers.NAME` of each of several, in the order of their names."""
        if self.teacher is not None:
            return {"teacher": self.teacher}
        return {f"teachers.{name}": self.teachers[name] for name in sorted(self.teachers)}

    @property
    def reads_by_actor(self) -> bool:
        """True where actor.log_prob_* cut a forward without a gradient; else opd.read_tokens or the memory plan does."""
        return self.opd.read_tokens is None and not self.is_packed

    @property
    def update_by_actor(self) -> bool:
        """True where actor.ppo_* cut an update; else opd.train_tokens or the memory plan does."""
        return self.opd.train_tokens is None and not self.is_packed

    @property
    def routed(self) -> tuple[str, ...]:
        """The names of several teachers that some value of the column leads to, in order."""
        return tuple(name for name in sorted(self.teachers) if name in self.route.names)

    @property
    def learns_from_rewards(self) -> bool:
        """Whether the rewards of its training answers change what is learnt; else they are metrics."""
        weights = (self.opd.policy.weight, *(stage.policy_weight for stage in self.opd.stages))
        return any(weights) or self.opd.reward_beta is not None or self.opd.importance.problems.recompute.is_asked_for

    @property
    def prompt_columns(self) -> tuple[tuple[str, str], ...]:
        """(key of the template, column) of what the teachers' own prompts read of the training data."""
        templates = {f"{key}.prompt": teacher.prompt for key, teacher in self.named_teachers.items()}
        return tuple((key, name) for key, text in templates.items() if text is not None for name in column_names(text))


class OpdSpec(DistillationSpec):
    """On-policy distillation, single turn."""

    kind: Literal["opd"] = Field(description="Kind of experiment.")


class OpdAgentSpec(DistillationSpec):
    """On-policy distillation over multi-turn rollouts with tools."""

    kind: Literal["opd-agent"] = Field(description="Kind of experiment.")
    agent: Agent = Field(description="Multi-turn rollouts with tools.")


class EvalSpec(SamplingSpec):
    """Validation only: every data set, several answers a problem."""

    kind: Literal["eval"] = Field(description="Kind of experiment.")
    eval: Eval = Field(description="What the evaluation asks.")

    @property
    def trains(self) -> bool:
        """True for a kind that trains."""
        return False

    agent: Agent | None = Field(default=None, description="Multi-turn rollouts with tools; unset: single answers.")


class PassRateSpec(EvalSpec):
    """An evaluation of the training prompts, as the student samples them in training."""

    kind: Literal["passrate"] = Field(description="Kind of experiment.")  # type: ignore[assignment]  # an evaluation else


class ConvertSpec(BaseSpec):
    """FSDP shards of a checkpoint to a Hugging Face folder."""

    kind: Literal["convert"] = Field(description="Kind of experiment.")
    convert: Convert = Field(description="Which checkpoint, to where.")


class PipelineSpec(BaseSpec):
    """Stages that run one after another, each a run of its own; `opd.config.pipeline` makes their specs."""

    kind: Literal["pipeline"] = Field(description="Kind of experiment.")
    stages: dict[StageName, dict[str, Any]] = Field(
        min_length=1,
        examples=[{"ask": {"kind": "eval", "model": {"path": "Qwen/Qwen3-1.7B"}}}],
        description="Experiments by name, of any other kind, without name, store, output and env, which are the pipeline's; "
        "${stages.NAME.RESULT} stands for what an earlier stage left; with `skip: true` a stage does not run.",
    )


AnySamplingSpec = GrpoSpec | OpdSpec | OpdAgentSpec | EvalSpec
AnyRunSpec = AnySamplingSpec | SftSpec
AnySpec = AnyRunSpec | ConvertSpec
"""One run."""
FileSpec = AnySpec | PipelineSpec
"""What an experiment file may hold."""

SPEC_CLASSES: dict[Kind, type[BaseSpec]] = {
    "grpo": GrpoSpec,
    "opd": OpdSpec,
    "opd-agent": OpdAgentSpec,
    "sft": SftSpec,
    "eval": EvalSpec,
    "passrate": PassRateSpec,
    "convert": ConvertSpec,
    "pipeline": PipelineSpec,
}
