"""verl's Hydra overrides of a spec: a pure function, in a stable order."""

import json
import re
from collections.abc import Iterator
from typing import Any

from opd.agent.environments import DEFAULT_TOOLSET
from opd.agent.settings import AGENT_LOOP, SINGLE_TURN
from opd.experiment.algorithm import MESSAGES
from opd.experiment.base import value_at
from opd.experiment.kinds import AnyRunSpec, AnySamplingSpec, EvalSpec, GrpoSpec, PassRateSpec, SftSpec
from opd.experiment.raw import VERL_KEYS, parse_raw
from opd.experiment.run_config import RunFacts

# A word that needs no quotes: it cannot start a number, hold Hydra's punctuation or open an interpolation.
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)\Z)[A-Za-z_/][A-Za-z0-9_./-]*", re.IGNORECASE)


def hydra_value(value: Any) -> str:
    """Return a value (bool, int, finite float, str, None, lists and maps of them) as an override's right-hand side."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, str):
        # Hydra unescapes backslashes before a quote or the text's end only, OmegaConf those before `${`: double these.
        escaped = re.sub(r"(\\*)(\$\{|'|\Z)", lambda m: m[1] * 2 + (f"\\{m[2]}" if m[2] else ""), value)
        return value if _PLAIN.fullmatch(value) else f"'{escaped}'"
    return json.dumps(value, allow_nan=False)


ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
RAY_INIT = "ray_kwargs.ray_init"
CPU_OBJECT_STORE_BYTES = 200_000_000  # a CPU run moves token ids, not weights, through Ray
_REWARD_PATHS = {"reward.custom_reward_function.path", "custom_reward_function.path"}  # today's and verl 0.7's
_ROLLOUT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

Pairs = Iterator[tuple[str, Any]]


def compute_overrides(spec: AnyRunSpec, *, run: RunFacts) -> list[str]:
    """Return the overrides of `opd_trainer.yaml` for one run, `++key=value` where verl's config does not list the key.

    A raw override of the spec replaces a computed one of the same key and comes last.
    """
    raw = {parsed["key"]: text for text in spec.overrides if (parsed := parse_raw(text))}
    groups = [_direct(spec, run), _models(spec), _rollout(spec), _data(spec), _run(spec, run)]
    # A scorer named in verl's own keys is called as verl calls it, without our scorer's arguments.
    if not isinstance(spec, SftSpec) and not raw.keys() & _REWARD_PATHS:
        groups.append(_reward(spec))
    computed = {key: value for group in groups for key, value in group}
    return [f"{key}={hydra_value(computed[key])}" for key in computed if key.lstrip("+") not in raw] + [*raw.values()]


def _direct(spec: AnyRunSpec, run: RunFacts) -> Pairs:
    """Yield keys that carry a key of the spec unchanged; without a value verl's default stays."""
    for key, path in VERL_KEYS:
        value = run.model_path if run.model_path and path == "model.path" else value_at(spec, path)
        if value is not None:  # a key left to the memory plan: verl's own switch gets the value that costs no memory
            yield key, True if value == "auto" and path.startswith("actor.") else value


def _models(spec: AnyRunSpec) -> Pairs:
    """Yield FSDP2 in one precision, master weights and reductions in fp32, and adapters in peft's words."""
    precision = spec.actor.dtype
    yield f"++{MODEL}.override_config.attn_implementation", spec.model.attn_implementation
    yield f"{ACTOR}.strategy", "fsdp2"
    for role in (ACTOR, REF):
        yield f"{role}.fsdp_config.seed", spec.seed
        for part, dtype in {"param": precision, "reduce": "fp32", "buffer": "fp32"}.items():
            yield f"++{role}.fsdp_config.mixed_precision.{part}_dtype", dtype
    yield f"{ACTOR}.data_loader_seed", spec.seed
    yield f"{REF}.fsdp_config.model_dtype", precision
    yield f"{REF}.fsdp_config.param_offload", spec.actor.param_offload is not False
    yield f"{REF}.fsdp_config.use_torch_compile", spec.actor.torch_compile
    yield f"{ACTOR}.use_kl_loss", isinstance(spec, GrpoSpec) and spec.grpo.kl_loss_coef > 0
    if isinstance(spec, GrpoSpec):
        yield f"{ACTOR}.clip_ratio", spec.grpo.clip_ratio_low
    if (lora := spec.model.lora) is not None:
        yield f"{MODEL}.lora_rank", lora.rank
        yield f"{MODEL}.lora_alpha", lora.alpha
        # As a list peft would take it for the name of a layer.
        yield f"{MODEL}.target_modules", "all-linear" if lora.target_modules == ("all-linear",) else lora.target_modules
        yield f"{MODEL}.lora.merge", True  # the rollout server gets whole weights, as of any student


def _rollout(spec: AnyRunSpec) -> Pairs:
    yield f"{ROLLOUT}.max_model_len", spec.row_length
    yield f"{ROLLOUT}.dtype", _ROLLOUT_DTYPES[spec.actor.dtype]
    yield f"{ROLLOUT}.seed", spec.seed
    if isinstance(spec, SftSpec):
        yield f"{ROLLOUT}.name", "none"
        yield f"{ROLLOUT}.n", 1
        return
    rollout = spec.rollout
    yield f"{ROLLOUT}.name", rollout.name
    yield f"{ROLLOUT}.val_kwargs.do_sample", rollout.val.temperature > 0
    if rollout.name == "vllm" and rollout.tensor_parallel_size == 1 and rollout.schedule == "strict":
        # Without a process of its own a server of one GPU starts faster; carry's full batch keeps the scheduler busy.
        yield f"++{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend", "uni"
    for key, value in sorted(rollout.engine_kwargs.items()):
        yield f"++{ROLLOUT}.engine_kwargs.{rollout.name}.{key}", value
    if (agent := getattr(spec, "agent", None)) is not None:
        yield f"{ROLLOUT}.multi_turn.enable", agent.enable_tools
        yield f"{ROLLOUT}.agent.default_agent_loop", AGENT_LOOP if agent.enable_tools else SINGLE_TURN
        if agent.tool_config_path is not None:
            yield f"{ROLLOUT}.multi_turn.tool_config_path", agent.tool_config_path
        elif agent.enable_tools and agent.program is None:
            # The data set measures prompts with the tools' descriptions.
            yield "++data.toolset", agent.toolset or DEFAULT_TOOLSET


def _data(spec: AnyRunSpec) -> Pairs:
    yield from {"algorithm.adv_estimator": "grpo", "algorithm.use_kl_in_reward": False}.items()
    yield "data.return_raw_chat", True
    yield "data.truncation", "left" if spec.data.filter_overlong else "error"
    yield "data.seed", spec.seed
    yield "data.trust_remote_code", spec.model.trust_remote_code
    for name, column in spec.data.columns.model_dump(exclude_none=True).items():
        yield f"++data.columns.{name}", column
    if isinstance(spec, PassRateSpec) or (isinstance(spec, EvalSpec) and spec.teacher is not None):
        yield "data.val_batch_size", spec.data.train_batch_size
    if isinstance(spec, SftSpec) and spec.sft.teacher_answers is None:
        yield "data.prompt_key", MESSAGES
        yield "data.custom_cls.path", "pkg://opd.trainer.conversations"
        yield "data.custom_cls.name", "ConversationDataset"
    yield "++data.apply_chat_template_kwargs.enable_thinking", spec.data.enable_thinking


def _reward(spec: AnySamplingSpec) -> Pairs:
    reward, agent = spec.reward, getattr(spec, "agent", None)
    functions = {"custom": f"{reward.path}:{reward.entry}", "environment": "opd.agent.environments:compute_score"}
    options = "++reward.custom_reward_function.reward_kwargs"
    yield "reward.custom_reward_function.path", "pkg://opd.rewards"
    yield "reward.custom_reward_function.name", "compute_score_async"
    yield f"{options}.function", functions.get(reward.function, reward.function)
    yield f"{options}.timeout_s", reward.timeout_s
    if agent is not None and reward.function == "environment":
        yield f"{options}.toolset", agent.toolset or DEFAULT_TOOLSET
        yield f"{options}.database_dir", agent.database_dir


def _run(spec: AnyRunSpec, run: RunFacts) -> Pairs:
    yield "trainer.experiment_name", run.run_id
    yield "trainer.default_local_dir", f"{run.run_dir}/checkpoints"
    if isinstance(spec, EvalSpec):
        yield from {"trainer.val_only": True, "trainer.val_before_train": True, "trainer.total_epochs": 0}.items()
        yield from {"trainer.save_freq": -1, "trainer.test_freq": -1}.items()
    for name, value in sorted(spec.env.items()):
        yield f"++{RAY_INIT}.runtime_env.env_vars.{name}", value
    if not run.in_ray_cluster:
        yield f"++{RAY_INIT}.include_dashboard", False
    if not run.in_ray_cluster and spec.device == "cpu":
        yield f"++{RAY_INIT}.num_gpus", spec.num_ranks  # logical slots, one a rank
        yield f"++{RAY_INIT}.object_store_memory", CPU_OBJECT_STORE_BYTES
