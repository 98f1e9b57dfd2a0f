"""The kinds of experiment, the sections that each one has, and a spec as JSON."""

import hashlib
import json
from typing import Annotated, Any, Literal, get_args

from opd.experiment import algorithm, sections
from opd.experiment.base import Kind, Section, key, matching, value_at
from opd.experiment.prompt_template import PROMPT, names_in
from opd.experiment.types import EnvName, KeyName, RunName, Text

StageName = Annotated[str, matching(r"^[a-z]([_a-z0-9]*[a-z0-9])?$", "lower-case letters, digits, `_`; a letter first")]
Recipe = Literal["grpo", "grpo-native", "grpo-native-no-kl"]
_KIND = "Kind of experiment."
_AGENT = "Multi-turn rollouts with tools; unset: single answers."
_TRAINER, _KEPT = "Length and rhythm, resources, logging.", "Which checkpoints stay."


class BaseSpec(Section):
    kind: Kind = key(_KIND)
    name: RunName = key("Name of the run, its id in the store. Default: kind, model, algorithm; Helm: the release's.")
    seed: int = key("Seed of data order, sampling and initialisation.", 42, ge=0, le=2**31 - 1)
    store: sections.Store = key("The object store.")
    output: sections.Output = key("Local files.", sections.Output)
    env: dict[EnvName, str] = key("Environment variables of every process of the run; never secrets.", dict)


class RunSpec(BaseSpec):
    device: Literal["cuda", "cpu"] = key("Device of trainer and rollout; on a machine without a GPU cpu.", "cuda")
    model: sections.Model = key("The student, or the model that is trained or evaluated.")
    data: sections.Data = key("Prompts, lengths, batch size.")
    actor: algorithm.Actor = key("Optimizer, batch split, memory.")
    trainer: sections.RunTrainer = key("Resources and logging.")
    overrides: tuple[Text, ...] = key("Raw Hydra overrides for verl keys that the spec does not name.", ())

    @property
    def row_length(self) -> int:
        return self.data.max_prompt_length + self.data.max_response_length

    @property
    def num_ranks(self) -> int:
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
        return self.rollout.num_samples if isinstance(self, SamplingSpec) else 1

    @property
    def step_rows(self) -> int:
        return self.data.train_batch_size * self.num_samples

    @property
    def is_packed(self) -> bool:
        """True where work and memory grow with the tokens: a GPU, no padding, flash attention."""
        packs = self.model.attn_implementation in ("varlen", "flash_attention_2")
        return self.device == "cuda" and self.actor.use_remove_padding and packs

    @property
    def reads_by_actor(self) -> bool:
        """True where actor.log_prob_* cut a forward without a gradient, not opd.read_tokens or the memory plan."""
        return value_at(self, "opd.read_tokens") is None and (self.actor.cut_reads == "given" or not self.is_packed)

    @property
    def update_by_actor(self) -> bool:
        """True where actor.ppo_* cut an update, not opd.train_tokens or the memory plan."""
        return value_at(self, "opd.train_tokens") is None and (self.actor.cut_updates == "given" or not self.is_packed)

    @property
    def has_reference(self) -> bool:
        """True where GRPO loads the start model a second time, for its KL; adapters can be left out instead."""
        return isinstance(self, GrpoSpec) and self.grpo.kl_loss_coef > 0 and self.model.lora is None


class SamplingSpec(RunSpec):
    rollout: sections.Rollout = key("How responses are sampled.")
    reward: sections.Reward = key("The function that scores a response.")

    @property
    def carried(self) -> tuple[int, int]:
        """Answers that the schedule carry generates at once, and the largest age of their tokens in updates."""
        rows, rollout = self.step_rows, self.rollout
        in_flight = 2 * rows if rollout.in_flight is None else rollout.in_flight
        return in_flight, 8 * -(-in_flight // rows) if rollout.max_age is None else rollout.max_age


class SftSpec(RunSpec):
    kind: Literal["sft"] = key(_KIND)
    sft: algorithm.Sft = key("Where the answers come from.", algorithm.Sft)
    trainer: sections.Trainer = key(_TRAINER)
    checkpoint: sections.Checkpoint = key(_KEPT, sections.Checkpoint)


class GrpoSpec(SamplingSpec):
    kind: Literal["grpo"] = key(_KIND)
    recipe: Recipe = key("`grpo`: DAPO style; `grpo-native`: verl's clip and a KL; `grpo-native-no-kl`: no KL.", "grpo")
    grpo: algorithm.Grpo = key("The policy-gradient loss.")
    trainer: sections.Trainer = key(_TRAINER)
    checkpoint: sections.Checkpoint = key(_KEPT, sections.Checkpoint)
    agent: sections.Agent | None = key(_AGENT, None)


class DistillationSpec(SamplingSpec):
    teacher: sections.Teacher | None = key("The teacher of all rows.", None)
    teachers: dict[KeyName, sections.Teacher] = key("Several teachers by name, each with the keys of `teacher`.", dict)
    route: sections.Route = key("Which of several teachers reads a row.", sections.Route)
    opd: algorithm.Opd = key("The divergence.")
    trainer: sections.Trainer = key(_TRAINER)
    checkpoint: sections.Checkpoint = key(_KEPT, sections.Checkpoint)

    @property
    def teacher_names(self) -> list[str]:
        """The names of several teachers in the order of their numbers: teachers of the ranks, then served ones, by name."""
        return sorted(self.teachers, key=lambda name: (bool(self.teachers[name].url), name))

    @property
    def all_teachers(self) -> dict[str, sections.Teacher]:
        """Every teacher by its key, `teacher` or `teachers.NAME` of several, in the order of their numbers."""
        if self.teacher is None:
            return {f"teachers.{name}": self.teachers[name] for name in self.teacher_names}
        url = (f"http://{self.name}-teacher:8000/v1",)  # the chart's Service
        return {"teacher": self.teacher.model_copy(update={"url": url} if self.teacher.serve else {})}

    @property
    def named_teachers(self) -> dict[str, sections.Teacher]:
        """The teachers that the ranks hold, by key."""
        return {key: teacher for key, teacher in self.all_teachers.items() if not teacher.url}

    @property
    def served_teachers(self) -> dict[str, sections.Teacher]:
        """The teachers that servers hold, by key."""
        return {key: teacher for key, teacher in self.all_teachers.items() if teacher.url}

    @property
    def has_events(self) -> bool:
        """True where the targets are k + 1 events: of served teachers, or without a teacher of opd.teacher_answers."""
        return bool(self.served_teachers) or not self.all_teachers

    @property
    def routed(self) -> tuple[str, ...]:
        """The names of several teachers that some value of the column leads to, in order."""
        return tuple(name for name in sorted(self.teachers) if name in self.route.to.values())

    @property
    def learns_from_rewards(self) -> bool:
        """True where the rewards of its training answers change what is learnt; else they are metrics."""
        return self.opd.has_policy or self.opd.reward_beta is not None

    @property
    def prompt_columns(self) -> tuple[tuple[str, str], ...]:
        """(key, column) of the training data that the teachers' own prompts and the route read."""
        templates = {f"{path}.prompt": names_in(one.prompt or "") for path, one in self.named_teachers.items()}
        named = templates | ({"route.by": [self.route.by]} if self.teachers else {})
        return tuple((path, name) for path, names in named.items() for name in names if name != PROMPT)


class OpdSpec(DistillationSpec):
    kind: Literal["opd"] = key(_KIND)


class OpdAgentSpec(DistillationSpec):
    kind: Literal["opd-agent"] = key(_KIND)
    agent: sections.Agent = key("Multi-turn rollouts with tools.")


class EvalSpec(SamplingSpec):
    kind: Literal["eval"] = key(_KIND)
    eval: algorithm.Eval = key("What the evaluation asks.")
    teacher: sections.Teacher | None = key("A served teacher that answers; unset: rollout servers with `model`.", None)
    agent: sections.Agent | None = key(_AGENT, None)


class PassRateSpec(EvalSpec):
    kind: Literal["passrate"] = key(_KIND)  # type: ignore[assignment]  # an evaluation else


class ConvertSpec(BaseSpec):
    kind: Literal["convert"] = key(_KIND)
    convert: algorithm.Convert = key("Which checkpoint, to where.")


class PipelineSpec(BaseSpec):
    kind: Literal["pipeline"] = key(_KIND)
    stages: dict[StageName, dict[str, Any]] = key("Experiments by name: docs/howto/pipelines.md.", min_length=1)


AnySamplingSpec = GrpoSpec | OpdSpec | OpdAgentSpec | EvalSpec
TrainSpec = OpdSpec | OpdAgentSpec | GrpoSpec | SftSpec
AnyRunSpec = AnySamplingSpec | SftSpec
AnySpec = AnyRunSpec | ConvertSpec  # one run
FileSpec = AnySpec | PipelineSpec  # the content of an experiment file

_CLASSES = (GrpoSpec, OpdSpec, OpdAgentSpec, SftSpec, EvalSpec, PassRateSpec, ConvertSpec, PipelineSpec)
SPEC_CLASSES: dict[Kind, type[BaseSpec]] = {get_args(cls.model_fields["kind"].annotation)[0]: cls for cls in _CLASSES}

# Keys that may change between two attempts of a run: labels, places, length, rhythm and logging. Memory settings too:
# a person changes them after an out-of-memory error. nnodes and gpus_per_node stay in: shards belong to a world size.
_NOT_IDENTITY = {
    "": "name env store output checkpoint stages",
    "model": "name",
    "data": "num_workers train_ratio",
    "rollout": "gpu_memory_utilization free_cache_engine enforce_eager max_num_seqs logprobs_every num_agent_workers",
    "actor": "gradient_checkpointing param_offload optimizer_offload torch_compile ppo_micro_batch_size_per_gpu"
    " log_prob_micro_batch_size_per_gpu ppo_max_token_len_per_gpu log_prob_max_token_len_per_gpu cut_updates cut_reads",
    "teacher": "offload wait_s",
    "opd": "chunk_size workspace_gib read_tokens train_tokens gpu_memory_gib max_unshared_mass num_kept_rollouts",
    "eval": "save_generations",
    "convert": "target trust_remote_code verify",
    "trainer": "loggers project master_port total_epochs total_steps save_freq test_freq val_before_train"
    " max_skipped_updates stall_floor_s stall_factor monitor resume",
}
NOT_IDENTITY = tuple(f"{section}.{one}".lstrip(".") for section, keys in _NOT_IDENTITY.items() for one in keys.split())
_EXCLUDED: Any = {section: set(keys.split()) for section, keys in _NOT_IDENTITY.items() if section}
_EXCLUDED |= dict.fromkeys(_NOT_IDENTITY[""].split(), True) | {"teachers": {"__all__": {"offload", "wait_s"}}}


def dump_spec(spec: BaseSpec) -> dict[str, Any]:
    """Return the spec as plain JSON values, with every default and without unset keys; `parse_tree` reads it again."""
    return spec.model_dump(mode="json", exclude_none=True)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def identity(spec: BaseSpec) -> dict[str, Any]:
    """Return the part of the spec that makes two runs the same experiment, for hashing and for a readable diff."""
    found = spec.model_dump(mode="json", exclude_none=True, exclude=_EXCLUDED)
    for teacher in (found.get("teacher", {}), *found.get("teachers", {}).values()):
        if teacher.pop("serve", None) or teacher.get("url"):  # a server that has moved reads as before
            teacher["url"] = ["served"]
    return found


def spec_hash(spec: BaseSpec) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `identity(spec)`."""
    return hashlib.sha256(canonical_json(identity(spec)).encode()).hexdigest()
