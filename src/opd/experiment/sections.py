"""The sections on models, data, rollouts, rewards, tools and the run itself."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from opd.experiment.base import Section, key, matching
from opd.experiment.errors import Problem
from opd.experiment.prompt_template import checked, names_in
from opd.experiment.types import Count, Dtype, Extras, Files, Natural, Offload, Paths, Positive, Servers, Text, Weight
from opd.store.access import URL_FIX, URL_RULE, is_usable

Attention = Literal["varlen", "sdpa", "flash_attention_2", "eager"]
Scorer = Literal["math_reward", "math_dapo", "math_verify", "exact_match", "environment", "custom"]
Logger = Literal["console", "file", "wandb", "mlflow", "tensorboard"]
Endpoint = Annotated[str, matching(r"^https?://[^/@\s]+$", "http:// or https:// and a host")]
TopK = Literal[-1] | Count
Every = Annotated[int, Field(ge=-1)]
Probability = Annotated[float, Field(gt=0, le=1)]
_MINIO = "https://minio.example:9000"
MCP = "mcp:"  # an agent.toolset that names an MCP server, by a command or a URL


def _layers(value: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [name for name in sorted(value) if name.rpartition(".")[2] in ("lm_head", "embed_tokens")]:
        raise ValueError(f"{wrong[0]} takes no adapter: the divergence is made from the head's own weight")
    if "all-linear" in value and len(value) > 1:
        raise ValueError("all-linear names every layer: give it alone, or name layers")
    return value


class Lora(Section):
    rank: Count = key("Rank of the adapters.")
    alpha: Count = key("Scale of the adapters, over `rank`.", 16)
    target_modules: Annotated[Paths, AfterValidator(_layers)] = key("Layers with one.", ("all-linear",))


class Model(Section):
    path: Text = key("Folder, Hugging Face id or store URL of the model.")
    name: Text = key("Label in logs and tables; never decides behaviour. Default: last part of model.path.")
    revision: Text | None = key("Commit of a Hugging Face id to pin.", None)
    trust_remote_code: bool = key("Run code that the model's repository ships.", False)
    attn_implementation: Attention = key("Attention of the trainer. Default: varlen; sdpa in fp32, padded or on a CPU.")
    lora: Lora | None = key("Train adapters on the frozen model; unset: train all weights.", None)


class Serve(Section):
    gpus: Count = key("GPUs of a server, which share the model by tensor parallelism.", 1)
    replicas: Count = key("Servers, each a pod.", 1)
    args: tuple[Text, ...] = key("More arguments of `vllm serve`: [--max-model-len, '16384'].", ())


class Teacher(Section):
    path: Text = key("Folder, Hugging Face id or store URL of the teacher; of a served one its name on the server.")
    url: Servers = key("OpenAI-compatible addresses of a served teacher's replicas; empty: the ranks load it.", ())
    serve: Serve | None = key("In the place of `url`: the chart starts vLLM servers, in the run's cluster.", None)
    top_k: Count = key("Likeliest tokens that a served teacher reports one by one; all others are one event.", 64)
    wait_s: Positive = key("Seconds that a served teacher may be unreachable before the attempt ends.", 600.0)
    revision: Text | None = key("Commit of a Hugging Face id to pin.", None)
    trust_remote_code: bool = key("Run code that the teacher's repository ships.", False)
    dtype: Dtype = key("Precision of the teacher's weights and forward. Default: bf16; on a CPU fp32.")
    offload: Offload = key("Keep it in host memory outside its phase; `auto`: if it must. Default: as in `actor`.")
    prompt: Annotated[Text, AfterValidator(checked)] | None = key("Its own user message, of {prompt}, {COLUMN}.", None)
    max_prompt_length: Count | None = key("Longest that `prompt` makes it. Default: the student's longest row.", None)
    refresh_every: Natural = key("Steps after which a teacher with model.path gets the student's weights; 0: never.", 0)

    def check(self) -> Iterator[Problem]:
        if self.prompt is not None and not names_in(self.prompt):
            rule = "there are no names in braces in it: the teacher would read the same text for every row"
            yield self.broken("prompt", rule, "write {prompt} or {COLUMN} of data.train, or remove the key")
        if self.serve and self.url:
            yield self.broken("url", "`serve` makes a server, which has an address of its own", "remove url, or serve")
        if self.serve and "://" in self.path:
            rule = "vLLM loads it in the cluster: a folder of the run's volumes, or a Hugging Face id"
            yield self.broken("path", rule, "name one of them, or remove serve")
        for name in (name for name in ("prompt", "refresh_every") if (self.url or self.serve) and getattr(self, name)):
            yield self.broken(name, "a server reads the student's rows, with weights of its own", "remove it")


class Route(Section):
    by: Text = key("Column of data.train, of text or whole numbers, that says whose a row is.", "data_source")
    to: dict[Text, Text] = key("Name of the teacher for each value in that column.", dict)

    def of(self, value: object) -> str | None:
        return self.to.get(str(value))


class Split(Section):
    part: Count | None = key("Use only this part of data.train, from 1 to `of`; unset: all.", None)
    of: int = key("Number of parts.", 2, ge=2)
    seed: Natural = key("Seed of the parts, the same in every run.", 42)

    def check(self) -> Iterator[Problem]:
        if (self.part is None and self.of != 2) or (self.part or 0) > self.of:
            rule = f"it says which of the {self.of} parts (data.split.of) is used, counted from 1"
            yield self.broken("part", rule, f"use 1 to {self.of}, or remove data.split.of")


class Columns(Section):
    prompt: Text | None = key("Column of the prompts, text or messages, or COLUMN.FIELD. Default: by its name.", None)
    answer: Text | None = key("Column of the ground truths; sft: of the answers. Default: by its name.", None)


class Data(Section):
    dir: Text = key("Folder or store URL that holds the prepared files.", "data")
    train: Files = key("Training prompts: files, folders, URLs or hub sets. Default: below data.dir; eval: data.val.")
    val: Files = key("Validation prompts, likewise. Default: the kind's sets below data.dir; passrate: data.train.")
    columns: Columns = key("Columns of data in a layout of their own.", Columns)
    train_batch_size: Count = key("Prompts of a step; passrate: of a part. Default: 256; grpo, passrate: 512; eval 64.")
    max_prompt_length: Count = key("Longest prompt in tokens. Default: 2048; opd-agent: 4096.")
    max_response_length: Count = key("Longest response, with tool replies. Default: 8192; opd-agent 24576; eval 16384.")
    enable_thinking: bool = key("`enable_thinking` given to the chat template, for every model.", True)
    filter_overlong: bool = key("Drop (and count) prompts longer than max_prompt_length; false: one is an error.", True)
    shuffle: bool = key("Shuffle the training prompts, by `seed`.", True)
    num_workers: Natural = key("Data loader processes; 0: the trainer itself loads. Default: 8; on a CPU 0.")
    max_train_samples: Count | None = key("Use only so many training prompts (sft: conversations).", None)
    max_val_samples: Count | None = key("Use only so many validation prompts (sft: conversations).", None)
    split: Split = key("One of several disjoint parts of the training prompts, each prompt's by its text.", Split)
    train_ratio: Probability = key("Recorded only: the train share that `opd.data`'s commands were given.", 0.8)


class Validation(Section):
    num_samples: Count = key("Responses a validation prompt gets. passrate: 8.", 16)
    temperature: Weight = key("Temperature; 0: greedy. Default: 0.7; opd, opd-agent with thinking: 0.6; passrate: 1.")
    top_p: Probability = key("Nucleus sampling mass. passrate: 1.", 0.8)
    top_k: TopK = key("Sample among the k likeliest tokens; -1: all. passrate: -1.", 20)


class Rollout(Section):
    name: Literal["vllm", "cpu"] = key("Rollout server. Default: vllm; on a CPU cpu.")
    num_samples: Count = key("Responses a training prompt gets, verl's rollout.n. Default: 1; grpo, eval, passrate: 8.")
    temperature: Positive = key("Sampling temperature in training.", 1.0)
    top_p: Probability = key("Nucleus sampling mass in training.", 1.0)
    top_k: TopK = key("Sample among the k likeliest tokens; -1 for all.", -1)
    val: Validation = key("Sampling at validation.")
    tensor_parallel_size: Count = key("Ranks that share one rollout server.", 1)
    gpu_memory_utilization: Probability = key("Share of GPU memory vLLM may take.", 0.7)
    free_cache_engine: bool = key("Let the server give its memory back while training.", True)
    enforce_eager: bool = key("vLLM without CUDA graphs: starts faster, samples slower.", False)
    max_num_seqs: Count = key("Sequences the server decodes at once.", 256)
    logprobs_every: Count = key("Steps between checks of sampled probabilities by the actor. Default: 10; on a CPU 1.")
    num_agent_workers: Natural = key("Processes that drive conversations; 0: the trainer. Default: 8; on a CPU 0.")
    schedule: Literal["strict", "carry"] = key("carry (opd): unfinished answers continue under new weights.", "strict")
    in_flight: Count | None = key("carry: responses generated at once; unset: twice a step's responses.", None)
    max_age: Count | None = key("carry: largest age of a token in updates; unset: 8 in_flight / step's rows.", None)
    keep_prefixes: bool = key("carry: keep the KV cache across weight updates; false: recompute it.", False)
    engine_kwargs: Extras = key("Extra arguments of the rollout server's engine.", dict)

    @property
    def is_truncated(self) -> bool:
        return self.top_p < 1.0 or self.top_k > 0


class Reward(Section):
    function: Scorer = key("Scorer. Default: math_reward; eval: the variant's; tools: environment; with path: custom.")
    path: Text | None = key("Python file or importable module of a custom function.", None)
    entry: Text = key("Name of the custom function in it.", "compute_score")
    timeout_s: Positive = key("Seconds one answer may take before it scores as a wrong one.", 10.0)

    def check(self) -> Iterator[Problem]:
        if (self.function == "custom") != (self.path is not None):
            rule = "reward.function custom and reward.path belong to each other"
            yield self.broken("function", rule, "set reward.path: FILE.py with it, and no path with another function")


class Agent(Section):
    database_dir: Text | None = key("Folder of the tool database, opened read-only; needed by our tools.", None)
    enable_tools: bool = key("Offer the tools; false samples single answers.", True)
    max_assistant_turns: Count = key("Model turns before the conversation ends.", 50)
    max_tool_response_length: Count = key("Tokens of a tool reply that are kept.", 1024)
    max_parallel_calls: Count = key("Tool calls of one turn that are run.", 1)
    tool_format: Text = key("Tool-call syntax: `hermes` (our parser) or one of verl's.", "hermes")
    tool_config_path: Text | None = key("Tool list of your own instead of ours.", None)
    call_timeout_s: Positive = key("Seconds of a tool call, or of a program between two answers.", 10.0)
    num_tool_processes: Count = key("Tool processes of each rollout process.", 4)
    toolset: Text | None = key("Environment: name, package.module:RECORD, FILE.py, mcp:SERVER; unset: travel.", None)
    program: Text | None = key("Agent program of your own instead: package.module:function or FILE.py:function.", None)
    num_kept_trajectories: Natural = key("Conversations of each step (and validation) kept for the report.", 8)

    def check(self) -> Iterator[Problem]:
        has_environment = (self.program is None or self.toolset) and not (self.toolset or "").startswith(MCP)
        if self.database_dir is None and has_environment:
            yield self.broken("database_dir", "an environment needs a database", "set agent.database_dir")
        if self.toolset is not None and not self.toolset.removeprefix(MCP).strip():
            yield self.broken("toolset", "mcp: names a server", "write mcp:COMMAND or mcp:http://HOST/mcp")
        if self.program is not None and not (self.tool_config_path is None and self.enable_tools):
            yield self.broken("program", "a program brings its own tools", "remove tool_config_path and enable_tools")


class RunTrainer(Section):
    nnodes: Count = key("Nodes.", 1)
    gpus_per_node: Count = key("Ranks on a node. Default: 8, on this machine its GPUs; on a CPU 1.")
    loggers: tuple[Logger, ...] = key("Trackers next to the run's own files.", ("console",), min_length=1)
    project: Text = key("Project name in wandb, mlflow and tensorboard.", "opd")
    master_port: int | None = key("Port of torch's rendezvous; unset: a free one.", None, ge=1024, le=65535)
    stall_floor_s: Weight = key("Seconds without progress that are never a stall; 0: nothing is.", 900.0)
    stall_factor: float = key("Medians of a phase's own silences after which it is stalled and ended.", 10.0, ge=1)


class Trainer(RunTrainer):
    total_epochs: Count = key("Passes over the training prompts.", 15)
    total_steps: Count | None = key("Stop after this many steps; unset: by epochs.", None)
    save_freq: Every = key("Steps between checkpoints; -1 or 0: none.", 20)
    test_freq: Every = key("Steps between validations; -1 or 0: none.", 5)
    val_before_train: bool = key("Validate before the first step. Default: true; opd, opd-agent: false.")
    max_skipped_updates: Natural = key("End the run after so many updates in a row that are not finite; 0: never.", 20)
    monitor: bool = key("Detect silent training faults (frozen weights, wrong template, ...) and log them.", True)
    resume: Literal["auto", "never"] = key("Continue from the newest complete checkpoint.", "auto")


class Checkpoint(Section):
    keep_last: Count | None = key("Keep this many newest checkpoints; unset: all.", None)
    keep_every: Count | None = key("Keep every checkpoint whose step is a multiple, for good.", None)
    overlap: bool = key("Write and upload a checkpoint while the next steps train, where host memory has room.", True)


class Store(Section):
    url: Text = key("Folder or URL: s3, gs, az, file. Default: output.root/store.", examples=["s3://experiments/opd"])
    endpoint: Endpoint | None = key("S3 server other than AWS's; egress to it is opened.", None, examples=[_MINIO])
    region: Text | None = key("S3 region; unset: the environment's.", None)
    addressing: Literal["path", "virtual", "auto"] | None = key("S3's form of URLs; unset: path with endpoint.", None)

    def check(self) -> Iterator[Problem]:
        if not is_usable(self.url):
            yield self.broken("url", URL_RULE, URL_FIX)


class Output(Section):
    root: Text = key("Folder under which a run makes its own.", "outputs")
