"""Defines the sections that say what runs on what data: model, teacher, data, rollout, reward, agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from opd.config.base import (
    KEY_PATTERN,
    Count,
    Dtype,
    Extras,
    Modules,
    Natural,
    Offload,
    Paths,
    Probability,
    Section,
    Text,
    TopK,
)
from opd.config.errors import Problem
from opd.config.prompt_template import checked, has_names

Attention = Literal["varlen", "sdpa", "flash_attention_2", "eager"]
TeacherName = Annotated[str, Field(pattern=KEY_PATTERN)]
PromptTemplate = Annotated[Text, AfterValidator(checked)]
RewardFunction = Literal["math_reward", "math_dapo", "math_verify", "exact_match", "environment", "custom"]


class Lora(Section):
    """Low-rank adapters on a frozen student, in peft's words: W + alpha / rank * B A in each layer that has one."""

    rank: Count = Field(description="Rank of the adapters.")
    alpha: Count = Field(default=16, description="Scale of the adapters, over `rank`.")
    target_modules: Modules = Field(
        default=("all-linear",),
        description="Linear layers with an adapter, by the last part of their names ([q_proj, v_proj]); `all-linear`: all but the "
        "output head, which stays frozen.",
    )


class Model(Section):
    """The student (or the model that is trained or evaluated)."""

    path: Text = Field(description="Folder, Hugging Face id or store URL of the model.", examples=["Qwen/Qwen3-1.7B"])
    name: Text = Field(description="Label in logs and tables; never decides behaviour.")
    revision: Text | None = Field(default=None, description="Commit of a Hugging Face id to pin.")
    trust_remote_code: bool = Field(default=False, description="Run code that the model's repository ships.")
    attn_implementation: Attention = Field(
        description="Attention kernel of the trainer's forward; `varlen`: torch's flash kernel over packed rows."
    )
    lora: Lora | None = Field(default=None, description="Train adapters on the frozen model; unset: train all weights.")


class Teacher(Section):
    """A teacher of a distillation run: another model, or the student itself as it was (with the student's path)."""

    path: Text = Field(description="Folder, Hugging Face id or store URL of the teacher.", examples=["Qwen/Qwen3-8B"])
    revision: Text | None = Field(default=None, description="Commit of a Hugging Face id to pin.")
    trust_remote_code: bool = Field(default=False, description="Run code that the teacher's repository ships.")
    dtype: Dtype = Field(description="Precision of the teacher's weights and forward.")
    offload: Offload = Field(
        description="Move the teacher to host memory outside its own phase; `auto`: where the plan has no room for it."
    )
    prompt: PromptTemplate | None = Field(
        default=None,
        description="What the teacher reads in the place of a row's last user message: a text with {prompt}, which is that "
        "message, and {COLUMN} or {COLUMN.FIELD} of data.train; unset: the student's prompt.",
        examples=["{prompt}\n\nReference solution: {reward_model.ground_truth}"],
    )
    max_prompt_length: Count | None = Field(
        default=None,
        description="Longest prompt in tokens that `prompt` may make; data.filter_overlong says what becomes of longer ones.",
    )
    refresh_every: Natural = Field(
        default=0,
        description="Steps after which a teacher that is the student (model.path) gets the student's weights as they are then, "
        "again and again; 0: it stays what it was at the start.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong with a prompt of the teacher's own."""
        if self.prompt is not None and not has_names(self.prompt):
            rule = "no name stands in braces in it, so the teacher would read the same text in the place of every row's question"
            fix = "write {prompt}, which is the row's last user message, or {COLUMN} of data.train, or remove the key"
            yield Problem(path="prompt", value=self.prompt, rule=rule, fix=fix)
        if self.max_prompt_length is not None and self.prompt is None:
            rule = "this teacher has no `prompt` of its own, and reads the student's prompts, whose length is data.max_prompt_length"
            fix = "give it a prompt, or remove the key"
            yield Problem(path="max_prompt_length", value=self.max_prompt_length, rule=rule, fix=fix)


class Route(Section):
    """Which of several teachers reads a row."""

    by: Text = Field(
        default="data_source", description="Column of data.train, of text or whole numbers, that says whose a row is."
    )
    to: dict[Text, Text] = Field(
        default_factory=dict,
        description="Name of the teacher for each value in that column; several values may have the same one.",
    )
    all: Text | None = Field(
        default=None, description="Name of the teacher of every row, in the place of `by` and `to`."
    )

    def of(self, value: object) -> str | None:
        """The teacher's name for a row with this value in the column; None: it leads to none."""
        return self.all or self.to.get(str(value))

    @property
    def names(self) -> set[str]:
        """Every teacher that some value leads to."""
        return {*self.to.values()} if self.all is None else {self.all}

    def check(self) -> Iterator[Problem]:
        """Yield a problem where rows are routed in two ways."""
        if self.all is not None and self.to:
            rule = "one reads every row, or each row has its own by route.to"
            yield Problem(path="all", value=self.all, rule=rule, fix="remove route.all or route.to")


class Split(Section):
    """One of several seeded parts of the training prompts."""

    part: Count | None = Field(
        default=None,
        description="Use only this part of data.train, from 1 to `of` (eval: of the prompts that are asked); unset: all.",
    )
    of: Annotated[int, Field(ge=2)] | None = Field(default=None, description="How many parts there are: 2 for halves.")
    seed: Natural | None = Field(
        default=None, description="Seed of the parts, never the run's: with one seed, part 1 is the same in every run."
    )

    @property
    def parts(self) -> tuple[int, int]:
        """How many there are and by which seed; known where there is a `part`."""
        assert self.of is not None
        assert self.seed is not None
        return self.of, self.seed

    def check(self) -> Iterator[Problem]:
        """Yield a problem for parts that are not used, and for a part that does not exist."""
        for key, value in (("of", self.of), ("seed", self.seed)) if self.part is None else ():
            if value is not None:
                rule = (
                    "it says what the parts are, and no data.split.part says which of them is used: all rows would be"
                )
                fix = f"set data.split.part to 1, 2 and so on, or remove data.split.{key}"
                yield Problem(path=key, value=value, rule=rule, fix=fix)
        if self.part is not None and self.of is not None and self.part > self.of:
            rule = f"there are {self.of} parts (data.split.of), counted from 1"
            yield Problem(
                path="part", value=self.part, rule=rule, fix=f"use at most {self.of}, or a larger data.split.of"
            )


class Data(Section):
    """Prompts, their files, lengths in tokens and batch size in prompts."""

    dir: Text = Field(default="data", description="Folder or store URL that holds the prepared files.")
    train: Paths = Field(description="Parquet files with the training prompts.", examples=[["train.parquet"]])
    val: Paths = Field(description="Parquet files with the validation prompts.", examples=[["val.parquet"]])
    train_batch_size: Count = Field(
        description="Prompts a training step draws; passrate: prompts whose answers are stored together."
    )
    max_prompt_length: Count = Field(description="Longest prompt in tokens.")
    max_response_length: Count = Field(description="Longest response in tokens, tool replies included.")
    enable_thinking: bool = Field(
        default=True, description="`enable_thinking` given to the chat template, for every model."
    )
    filter_overlong: bool = Field(default=True, description="Drop (and count) prompts longer than max_prompt_length.")
    truncation: Literal["error", "left"] = Field(default="left", description="What an overlong prompt that stays gets.")
    shuffle: bool = Field(default=True, description="Shuffle the training prompts, by `seed`.")
    num_workers: Natural = Field(description="Data loader processes; 0 loads in the trainer itself.")
    max_train_samples: Count | None = Field(
        default=None, description="Use only this many training prompts; sft: conversations, before they become rows."
    )
    max_val_samples: Count | None = Field(
        default=None, description="Use only this many validation prompts; sft: conversations, before they become rows."
    )
    split: Split = Field(
        default_factory=Split,
        description="One of several disjoint parts of the training prompts, each prompt's by its text.",
    )
    train_ratio: Probability = Field(
        default=0.8, description="Recorded only: the share in the train file that `opd.data`'s commands were given."
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem where prompts would lose their beginning."""
        if not self.filter_overlong and self.truncation == "left":
            rule = (
                "left truncation would cut the system prompt and the instruction first, so it is refused: an overlong prompt is "
                "dropped and counted, or is an error"
            )
            fix = "set data.filter_overlong: true, or data.truncation: error"
            yield Problem(path="truncation", value=self.truncation, rule=rule, fix=fix)


class Validation(Section):
    """Sampling at validation; temperature 0 with num_samples 1 is greedy."""

    num_samples: Count = Field(default=16, description="Responses a validation prompt gets.")
    temperature: float = Field(ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: Probability = Field(default=0.8, description="Nucleus sampling mass.")
    top_k: TopK = Field(default=20, description="Sample among the k likeliest tokens; -1 for all.")


class Rollout(Section):
    """How responses are sampled, and the server that samples them."""

    name: Literal["vllm", "cpu"] = Field(description="Rollout server.")
    num_samples: Count = Field(description="Responses a training prompt gets (verl's rollout.n).")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature in training.")
    top_p: Probability = Field(default=1.0, description="Nucleus sampling mass in training.")
    top_k: TopK = Field(default=-1, description="Sample among the k likeliest tokens; -1 for all.")
    val: Validation = Field(description="Sampling at validation.")
    tensor_parallel_size: Count = Field(default=1, description="Ranks that share one rollout server.")
    gpu_memory_utilization: Probability = Field(default=0.7, description="Share of GPU memory vLLM may take.")
    free_cache_engine: bool = Field(default=True, description="Let the server give its memory back while training.")
    enforce_eager: bool = Field(default=False, description="vLLM without CUDA graphs: starts faster, samples slower.")
    max_num_seqs: Count = Field(default=256, description="Sequences the server decodes at once.")
    max_num_batched_tokens: Count = Field(default=8192, description="Tokens the server processes in one forward.")
    logprobs_every: Count = Field(
        description="In every so many-th step, the first among them, the server also returns each token's probability, by which "
        "the monitor checks that rollout and actor agree. vLLM decodes up to three times slower in those."
    )
    num_agent_workers: Natural = Field(description="Processes that drive the conversations; 0: the trainer itself.")
    schedule: Literal["strict", "carry"] = Field(
        default="strict",
        description="`strict`: a step's responses are all its own, and its update waits for the longest; `carry` (kind opd): an "
        "update takes place when enough responses are complete, and the others go on under the new weights.",
    )
    in_flight: Count | None = Field(
        default=None,
        description="carry: responses that are generated at once; unset: twice those of a step.",
        examples=[512],
    )
    max_age: Count | None = Field(
        default=None,
        examples=[16],
        description="carry: the most versions of the weights, one a step, between the one that sampled a token and the one that trains on it; "
        "unset: 8 times in_flight over a step's responses, rounded up, so 16 where in_flight is unset.",
    )
    keep_prefixes: bool = Field(
        default=False,
        description="true (carry, with vLLM and free_cache_engine: false): a response goes on from the keys and values that the weights before "
        "an update computed of its tokens (in vLLM's prefix cache); false: the server reads its prompt and tokens again under the new weights.",
    )
    engine_kwargs: Extras = Field(default_factory=dict, description="Extra arguments of the rollout server's engine.")

    @property
    def is_truncated(self) -> bool:
        """Whether training answers are sampled among the likeliest tokens only."""
        return self.top_p < 1.0 or self.top_k > 0


class Reward(Section):
    """The function that scores a response."""

    function: RewardFunction = Field(
        description="Scorer by name; `custom` takes path and entry; `environment`: of agent.toolset."
    )
    path: Text | None = Field(default=None, description="Python file or importable module of a custom function.")
    entry: Text = Field(default="compute_score", description="Name of the custom function in it.")
    num_workers: Natural = Field(description="Reward processes of verl; 0: scored where the conversation runs.")
    timeout_s: float = Field(
        default=10.0, gt=0, description="Seconds one answer may take before it scores as a wrong one."
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem where function and file do not match."""
        if self.function == "custom" and self.path is None:
            yield Problem(path="path", rule="a custom reward function needs its file", fix="set reward.path: FILE.py")
        if self.function != "custom" and self.path is not None:
            fix = "set reward.function: custom, or remove reward.path"
            yield Problem(path="function", value=self.function, rule="reward.path belongs to function custom", fix=fix)


class Agent(Section):
    """Multi-turn rollouts with tools over a database."""

    database_dir: Text = Field(description="Folder of the tool database, opened read-only.")
    enable_tools: bool = Field(default=True, description="Offer the tools; false samples single answers.")
    max_assistant_turns: Count = Field(default=50, description="Model turns before the conversation ends.")
    max_tool_response_length: Count = Field(default=1024, description="Tokens of a tool reply that are kept.")
    max_parallel_calls: Count = Field(default=1, description="Tool calls of one turn that are run.")
    tool_format: Text = Field(default="hermes", description="Tool-call syntax: `hermes` (our parser) or one of verl's.")
    tool_config_path: Text | None = Field(default=None, description="Tool list of your own instead of ours.")
    call_timeout_s: float = Field(default=10.0, gt=0, description="Seconds a tool call may take.")
    num_tool_processes: Count = Field(default=4, description="Tool processes of each rollout process.")
    toolset: Text | None = Field(
        default=None,
        description="Environment: a registered name, `package.module:NAME` or `file.py`; unset: the default.",
    )
    num_kept_trajectories: Natural = Field(
        default=8, description="Conversations of each step (and validation) kept for the trajectory viewer."
    )
