"""The sections that say what runs on what data: model, teacher, data, rollout, reward, agent."""

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
    Positive,
    Probability,
    Section,
    Text,
    TopK,
    Weight,
    key,
)
from opd.config.errors import Problem
from opd.config.prompt_template import checked, has_names

Attention = Literal["varlen", "sdpa", "flash_attention_2", "eager"]
TeacherName = Annotated[str, Field(pattern=KEY_PATTERN)]
PromptTemplate = Annotated[Text, AfterValidator(checked)]
RewardFunction = Literal["math_reward", "math_dapo", "math_verify", "exact_match", "environment", "custom"]
Parts = Annotated[int, Field(ge=2)]


class Lora(Section):
    """Low-rank adapters on a frozen student, in peft's words: W + alpha / rank * B A in each layer that has one."""

    rank: Count = key("Rank of the adapters.")
    alpha: Count = key("Scale of the adapters, over `rank`.", 16)
    target_modules: Modules = key("Layers with an adapter, as [q_proj, v_proj]; `all-linear`: all.", ("all-linear",))


class Model(Section):
    """The student (or the model that is trained or evaluated)."""

    path: Text = key("Folder, Hugging Face id or store URL of the model.", examples=["Qwen/Qwen3-1.7B"])
    name: Text = key("Label in logs and tables; never decides behaviour.")
    revision: Text | None = key("Commit of a Hugging Face id to pin.", None)
    trust_remote_code: bool = key("Run code that the model's repository ships.", False)
    attn_implementation: Attention = key(
        "Attention of the trainer's forward; `varlen`: flash attention of packed rows."
    )
    lora: Lora | None = key("Train adapters on the frozen model; unset: train all weights.", None)


class Teacher(Section):
    """A teacher of a distillation run: another model, or the student as it was (with the student's path)."""

    path: Text = key("Folder, Hugging Face id or store URL of the teacher.", examples=["Qwen/Qwen3-8B"])
    revision: Text | None = key("Commit of a Hugging Face id to pin.", None)
    trust_remote_code: bool = key("Run code that the teacher's repository ships.", False)
    dtype: Dtype = key("Precision of the teacher's weights and forward.")
    offload: Offload = key("Keep the teacher in host memory outside its phase; `auto`: if it does not fit.")
    prompt: PromptTemplate | None = key(
        "The teacher's own user message, of {prompt}, {COLUMN} and {COLUMN.FIELD} of data.train; unset: the student's.",
        None,
        examples=["{prompt}\n\nReference solution: {reward_model.ground_truth}"],
    )
    max_prompt_length: Count | None = key("Longest prompt in tokens that `prompt` may make.", None)
    refresh_every: Natural = key("Steps after which a teacher with model.path gets the student's weights; 0: never.", 0)

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong with a prompt of the teacher's own."""
        if self.prompt is not None and not has_names(self.prompt):
            rule = "there are no names in braces in it: the teacher would read the same text for every row"
            fix = "write {prompt}, which is the row's last user message, or {COLUMN} of data.train, or remove the key"
            yield Problem(path="prompt", value=self.prompt, rule=rule, fix=fix)
        if self.max_prompt_length is not None and self.prompt is None:
            rule = "without a `prompt` the teacher reads the student's prompts, whose length is data.max_prompt_length"
            fix = "give it a prompt, or remove the key"
            yield Problem(path="max_prompt_length", value=self.max_prompt_length, rule=rule, fix=fix)


class Route(Section):
    """The choice of the teacher that reads a row, among several."""

    by: Text = key("Column of data.train, of text or whole numbers, that says whose a row is.", "data_source")
    to: dict[Text, Text] = key("Name of the teacher for each value in that column.", dict)
    all: Text | None = key("Name of the teacher of every row, in the place of `by` and `to`.", None)

    def of(self, value: object) -> str | None:
        """Return the name of the teacher for a value of the column; None for a value that leads to none."""
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

    part: Count | None = key("Use only this part of data.train, from 1 to `of`; unset: all.", None)
    of: Parts | None = key("How many parts there are: 2 for halves.", None)
    seed: Natural | None = key("Seed of the parts, never the run's: one seed gives the same parts in every run.", None)

    @property
    def parts(self) -> tuple[int, int]:
        """The number of parts and their seed; known where there is a `part`."""
        assert self.of is not None
        assert self.seed is not None
        return self.of, self.seed

    def check(self) -> Iterator[Problem]:
        """Yield a problem for parts that are not used, and for a part that does not exist."""
        for name, value in (("of", self.of), ("seed", self.seed)) if self.part is None else ():
            if value is not None:
                rule = "it describes the parts, and no data.split.part says which of them is used: all rows would be"
                fix = f"set data.split.part to 1, 2 and so on, or remove data.split.{name}"
                yield Problem(path=name, value=value, rule=rule, fix=fix)
        if self.part is not None and self.of is not None and self.part > self.of:
            rule, fix = f"there are {self.of} parts (data.split.of), counted from 1", f"use at most {self.of}"
            yield Problem(path="part", value=self.part, rule=rule, fix=f"{fix}, or a larger data.split.of")


class Data(Section):
    """Prompts, their files, lengths in tokens and batch size in prompts."""

    dir: Text = key("Folder or store URL that holds the prepared files.", "data")
    train: Paths = key("Parquet files with the training prompts.", examples=[["train.parquet"]])
    val: Paths = key("Parquet files with the validation prompts.", examples=[["val.parquet"]])
    train_batch_size: Count = key("Prompts of a training step; passrate: prompts whose answers are stored together.")
    max_prompt_length: Count = key("Longest prompt in tokens.")
    max_response_length: Count = key("Longest response in tokens, tool replies included.")
    enable_thinking: bool = key("`enable_thinking` given to the chat template, for every model.", True)
    filter_overlong: bool = key("Drop (and count) prompts longer than max_prompt_length.", True)
    truncation: Literal["error", "left"] = key("Treatment of an overlong prompt that stays.", "left")
    shuffle: bool = key("Shuffle the training prompts, by `seed`.", True)
    num_workers: Natural = key("Data loader processes; 0 loads in the trainer itself.")
    max_train_samples: Count | None = key("Use only so many training prompts (sft: conversations).", None)
    max_val_samples: Count | None = key("Use only so many validation prompts (sft: conversations).", None)
    split: Split = key("One of several disjoint parts of the training prompts, each prompt's by its text.", Split)
    train_ratio: Probability = key("Recorded only: the train share that `opd.data`'s commands were given.", 0.8)

    def check(self) -> Iterator[Problem]:
        """Yield a problem where prompts would lose their beginning."""
        if not self.filter_overlong and self.truncation == "left":
            rule = "left truncation would cut the system prompt and the instruction first, so it is refused"
            fix = "set data.filter_overlong: true, which drops and counts such prompts, or data.truncation: error"
            yield Problem(path="truncation", value=self.truncation, rule=rule, fix=fix)


class Validation(Section):
    """Sampling at validation; temperature 0 with num_samples 1 is greedy."""

    num_samples: Count = key("Responses a validation prompt gets.", 16)
    temperature: Weight = key("Sampling temperature; 0 is greedy.")
    top_p: Probability = key("Nucleus sampling mass.", 0.8)
    top_k: TopK = key("Sample among the k likeliest tokens; -1 for all.", 20)


class Rollout(Section):
    """Sampling of responses, and the server that samples them."""

    name: Literal["vllm", "cpu"] = key("Rollout server.")
    num_samples: Count = key("Responses a training prompt gets (verl's rollout.n).")
    temperature: Positive = key("Sampling temperature in training.", 1.0)
    top_p: Probability = key("Nucleus sampling mass in training.", 1.0)
    top_k: TopK = key("Sample among the k likeliest tokens; -1 for all.", -1)
    val: Validation = key("Sampling at validation.")
    tensor_parallel_size: Count = key("Ranks that share one rollout server.", 1)
    gpu_memory_utilization: Probability = key("Share of GPU memory vLLM may take.", 0.7)
    free_cache_engine: bool = key("Let the server give its memory back while training.", True)
    enforce_eager: bool = key("vLLM without CUDA graphs: starts faster, samples slower.", False)
    max_num_seqs: Count = key("Sequences the server decodes at once.", 256)
    max_num_batched_tokens: Count = key("Tokens the server processes in one forward.", 8192)
    logprobs_every: Count = key("Steps between two whose sampled probabilities the monitor compares with the actor's.")
    num_agent_workers: Natural = key("Processes that drive the conversations; 0: the trainer itself.")
    schedule: Literal["strict", "carry"] = key(
        "`strict`: a step trains on its own responses; `carry` (kind opd): the unfinished continue under new weights.",
        "strict",
    )
    in_flight: Count | None = key(
        "carry: responses that are generated at once; unset: twice those of a step.", None, examples=[512]
    )
    max_age: Count | None = key(
        "carry: most versions of the weights between sampling a token and training on it; "
        "unset: 8 times in_flight over a step's responses.",
        None,
        examples=[16],
    )
    keep_prefixes: bool = key("carry: keep the KV cache across weight updates; false: recompute it.", False)
    engine_kwargs: Extras = key("Extra arguments of the rollout server's engine.", dict)

    @property
    def is_truncated(self) -> bool:
        """True where training answers are sampled among the likeliest tokens only."""
        return self.top_p < 1.0 or self.top_k > 0


class Reward(Section):
    """The function that scores a response."""

    function: RewardFunction = key("Scorer by name; `custom` takes path and entry.")
    path: Text | None = key("Python file or importable module of a custom function.", None)
    entry: Text = key("Name of the custom function in it.", "compute_score")
    num_workers: Natural = key("Reward processes of verl; 0: scored where the conversation runs.")
    timeout_s: Positive = key("Seconds one answer may take before it scores as a wrong one.", 10.0)

    def check(self) -> Iterator[Problem]:
        """Yield a problem where function and file do not match."""
        if self.function == "custom" and self.path is None:
            yield Problem(path="path", rule="a custom reward function needs its file", fix="set reward.path: FILE.py")
        if self.function != "custom" and self.path is not None:
            fix = "set reward.function: custom, or remove reward.path"
            yield Problem(path="function", value=self.function, rule="reward.path belongs to function custom", fix=fix)


class Agent(Section):
    """Multi-turn rollouts with tools over a database."""

    database_dir: Text = key("Folder of the tool database, opened read-only.")
    enable_tools: bool = key("Offer the tools; false samples single answers.", True)
    max_assistant_turns: Count = key("Model turns before the conversation ends.", 50)
    max_tool_response_length: Count = key("Tokens of a tool reply that are kept.", 1024)
    max_parallel_calls: Count = key("Tool calls of one turn that are run.", 1)
    tool_format: Text = key("Tool-call syntax: `hermes` (our parser) or one of verl's.", "hermes")
    tool_config_path: Text | None = key("Tool list of your own instead of ours.", None)
    call_timeout_s: Positive = key("Seconds a tool call may take.", 10.0)
    num_tool_processes: Count = key("Tool processes of each rollout process.", 4)
    toolset: Text | None = key("Python module or file that defines TOOLS over the database.", None)
    num_kept_trajectories: Natural = key("Conversations of each step (and validation) kept for the report.", 8)
