"""Fills in defaults that differ by kind, recipe or device, or follow from another key: the original's tables as data.

Static defaults live on their fields. A default here is filled into the plain tree before it is validated, in the order of
the table, so a validated spec always holds concrete values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import PydanticUndefined

from opd.config.base import FILE_KINDS, KINDS, Kind, Section, joined
from opd.config.tree import MISSING, field_at, get_path, set_path, strip_optional

_T = TypeVar("_T")
UNSET = object()
_CHECKPOINT_FOLDERS = ("", "checkpoints", "actor")
SAMPLES: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "eval", "passrate")
RUNS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft", "eval", "passrate")
TRAINS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft")
DISTILS: tuple[Kind, ...] = ("opd", "opd-agent")
ASKS: tuple[Kind, ...] = ("eval", "passrate")


class Unresolvable(Exception):
    """A default needs a key that is missing or has the wrong type; validation reports that key itself."""


@dataclass(frozen=True)
class Lookup:
    """Values as they will be: from the tree, else the field's static default."""

    kind: Kind
    cls: type[Section]
    tree: dict[str, Any]

    def has(self, path: str) -> bool:
        """Whether the tree has the path."""
        return get_path(self.tree, path) is not MISSING

    def get(self, path: str, type_: type[_T]) -> _T:
        """The value at path, which must be of `type_`, else `Unresolvable`."""
        value = get_path(self.tree, path)
        if value is MISSING:
            field = field_at(self.cls, path)
            value = field.default if field is not None else MISSING
        if value is PydanticUndefined or type(value) is not type_:
            raise Unresolvable(path)
        return value

    def typed(self, path: str) -> Any:
        """The value at path, which must be of its field's type, else `Unresolvable`."""
        if path == "kind":
            return self.kind
        field = field_at(self.cls, path)
        annotation = None if field is None else strip_optional(field.annotation)
        return self.get(path, annotation if isinstance(annotation, type) else str)

    @property
    def on_gpu(self) -> bool:
        return self.get("device", str) != "cpu"

    @property
    def row_length(self) -> int:
        return self.get("data.max_prompt_length", int) + self.get("data.max_response_length", int)

    @property
    def uses_tools(self) -> bool:
        return self.kind == "opd-agent" or self.has("agent")


@dataclass(frozen=True)
class Default:
    """One computed default: `value(lookup)` for the kinds that have the path, `says` for people.

    `beside` is a key of the same section without which there is no default.
    """

    path: str
    kinds: tuple[Kind, ...]
    value: Callable[[Lookup], Any]
    says: str
    by_kind: dict[Kind, Any] | None = None
    beside: str = ""


def _per_kind(path: str, **values: Any) -> Default:
    by_kind = {kind: values[kind.replace("-", "_")] for kind in KINDS if kind.replace("-", "_") in values}
    says = ", ".join(f"{kind}: {value}" for kind, value in by_kind.items())
    return Default(path, tuple(by_kind), lambda look: by_kind[look.kind], says, by_kind)


def _per_device(path: str, cuda: Any, cpu: Any, kinds: tuple[Kind, ...] = RUNS) -> Default:
    says = f"cuda: {cuda}, cpu: {cpu}".lower()
    return Default(path, kinds, lambda look: cuda if look.on_gpu else cpu, says)


def _per_recipe(path: str, grpo: Any, native: Any, no_kl: Any) -> Default:
    values = {"grpo": grpo, "grpo-native": native, "grpo-native-no-kl": no_kl}

    def value(look: Lookup) -> Any:
        recipe = look.get("recipe", str)
        if recipe not in values:
            raise Unresolvable("recipe")
        return values[recipe]

    return Default(path, ("grpo",), value, ", ".join(f"{recipe}: {v}" for recipe, v in values.items()))


def _in_dir(look: Lookup, folder: str, *names: str) -> list[str]:
    root = look.get("data.dir", str).rstrip("/")
    return [f"{root}/{folder}/{name}.parquet" for name in names]


def _val_files(look: Lookup) -> Any:
    if look.kind == "passrate":
        given = get_path(look.tree, "data.train")
        return given if isinstance(given, list | str) else _training_file(look)
    if look.uses_tools:
        return _in_dir(look, "agent_processed", "val_travel_en", "val_travel_zh")
    if look.kind == "eval":
        folder = f"eval_processed/{look.get('eval.instruction_variant', str)}"
        return _in_dir(look, folder, "val_math500", "val_aime24", "val_aime25")
    names = ["val_math500", "val_aime24", "val_aime25"]
    if look.kind == "grpo" and look.get("recipe", str) != "grpo-native-no-kl":
        names.insert(0, "val_dapo")
    return _in_dir(look, "grpo_processed", *names)


def _train_files(look: Lookup) -> Any:
    if look.kind in ASKS:  # verl builds a training set even for validation only
        val = get_path(look.tree, "data.val")
        if not isinstance(val, list | str):
            raise Unresolvable("data.val")
        return val
    return _training_file(look)


def _training_file(look: Lookup) -> list[str]:
    return _in_dir(look, "agent_processed" if look.uses_tools else "grpo_processed", "train")


def _reward_function(look: Lookup) -> str:
    if look.has("reward.path"):
        return "custom"
    if look.uses_tools:
        return "environment"
    if look.kind in ASKS:
        variant = look.get("eval.instruction_variant", str)
        return {"dapo": "math_dapo", "none": "math_verify"}.get(variant, "math_reward")
    return "math_reward"


def _basename(look: Lookup) -> str:
    name = look.get("model.path", str).rstrip("/").rpartition("/")[2]
    if not name:
        raise Unresolvable("model.path")
    return name


def _run_name(look: Lookup) -> str:
    """As the original's experiment names: `opd-qwen3-1-7b-reverse-kl`; a conversion's follows its checkpoint's folders."""
    if look.kind == "convert":
        folders = [part for part in look.get("convert.checkpoint", str).split("/") if part not in _CHECKPOINT_FOLDERS]
        return joined([look.kind, *folders[-2:]])
    if look.kind == "sft":
        return joined([look.kind, look.get("model.name", str)])
    algorithm = {"grpo": "recipe", **dict.fromkeys(ASKS, "eval.instruction_variant")}.get(look.kind, "opd.loss_type")
    return joined([look.kind, look.get("model.name", str), look.get(algorithm, str)])


def _places(path: str, tree: dict[str, Any], *, beside: str = "") -> list[str]:
    """Where a default goes: that of a key of `teacher` also into each of several `teachers`.

    Args:
        beside: only into those sections that have this key.
    """
    section, _, key = path.partition(".")
    several = tree.get("teachers")
    if section != "teacher" or not several or not isinstance(several, dict):
        places = [path]
    else:
        places = [f"teachers.{name}.{key}" for name in several] + [path] * ("teacher" in tree)
    if not beside:
        return places
    return [place for place in places if get_path(tree, f"{place.rpartition('.')[0]}.{beside}") is not MISSING]


def _offload(look: Lookup) -> bool | str:
    """Only the distillation worker makes a memory plan."""
    if not look.on_gpu:
        return False
    return "auto" if look.kind in DISTILS else True


def _val_temperature(look: Lookup) -> float:
    """Pass rates are those of the answers that training samples."""
    if look.kind == "passrate":
        return 1.0
    return 0.6 if look.kind in DISTILS and look.get("data.enable_thinking", bool) else 0.7


def _score_budget(look: Lookup) -> int:
    """A teacher's own prompts are at most as long as a row unless it is given a length."""
    given = [get_path(look.tree, path) for path in _places("teacher.max_prompt_length", look.tree)]
    longest = max((length for length in given if isinstance(length, int)), default=0)
    return max(3 * look.row_length, longest + look.get("data.max_response_length", int))


_OFFLOAD_SAYS = "cuda: true, with kind opd, opd-agent: auto; cpu: false"


def _attention(look: Lookup) -> str:
    if not look.on_gpu or not look.get("actor.use_remove_padding", bool):
        return "sdpa"
    sixteen_bit = look.get("actor.dtype", str) != "fp32"
    if look.kind in DISTILS:
        teachers = [get_path(look.tree, path) for path in _places("teacher.dtype", look.tree)]
        sixteen_bit = sixteen_bit and "fp32" not in teachers
    return "varlen" if sixteen_bit else "sdpa"


DEFAULTS: tuple[Default, ...] = (
    Default("model.name", RUNS, _basename, "last part of model.path"),
    _per_kind("data.train_batch_size", grpo=512, opd=256, opd_agent=256, sft=256, eval=64, passrate=512),
    _per_kind("data.max_prompt_length", grpo=2048, opd=2048, opd_agent=4096, sft=2048, eval=2048, passrate=2048),
    _per_kind("data.max_response_length", grpo=8192, opd=8192, opd_agent=24576, sft=8192, eval=16384, passrate=8192),
    Default(
        "data.val",
        SAMPLES,
        _val_files,
        "the kind's (and recipe's or variant's) validation sets below data.dir; passrate: data.train",
    ),
    Default("data.train", SAMPLES, _train_files, "the kind's training file below data.dir; eval: data.val"),
    Default("data.split.of", RUNS, lambda look: 2, "2, where there is a `part`", beside="part"),
    Default("data.split.seed", RUNS, lambda look: 42, "42, where there is a `part`", beside="part"),
    _per_device("data.num_workers", 8, 0),
    _per_device("rollout.name", "vllm", "cpu", SAMPLES),
    _per_kind("rollout.num_samples", grpo=8, opd=1, opd_agent=1, eval=8, passrate=8),
    _per_device("rollout.logprobs_every", 10, 1, SAMPLES),
    _per_device("rollout.num_agent_workers", 8, 0, SAMPLES),
    Default(
        "rollout.val.temperature",
        SAMPLES,
        _val_temperature,
        "0.7; opd, opd-agent with data.enable_thinking: 0.6; passrate: 1",
    ),
    _per_kind("rollout.val.num_samples", passrate=8),
    _per_kind("rollout.val.top_p", passrate=1.0),
    _per_kind("rollout.val.top_k", passrate=-1),
    _per_kind("eval.save_generations", eval=True, passrate=False),
    _per_kind("actor.ppo_mini_batch_size", grpo=128, opd=64, opd_agent=64, sft=64, eval=16, passrate=16),
    _per_kind("actor.ppo_micro_batch_size_per_gpu", grpo=4, opd=4, opd_agent=4, sft=4, eval=2, passrate=2),
    Default(
        "actor.log_prob_micro_batch_size_per_gpu",
        RUNS,
        lambda look: look.get("actor.ppo_micro_batch_size_per_gpu", int),
        "actor.ppo_micro_batch_size_per_gpu",
    ),
    Default(
        "actor.use_dynamic_bsz",
        RUNS,
        lambda look: look.kind == "grpo" and look.get("recipe", str) == "grpo",
        "true for the recipe grpo, else false",
    ),
    Default("actor.ppo_max_token_len_per_gpu", RUNS, lambda look: 2 * look.row_length, "2 x (prompt + response)"),
    Default(
        "actor.log_prob_max_token_len_per_gpu",
        RUNS,
        _score_budget,
        "3 x (prompt + response), or the longest row of a teacher with prompts of its own where that is more",
    ),
    _per_device("actor.use_remove_padding", True, False),
    Default("actor.gradient_checkpointing", RUNS, _offload, _OFFLOAD_SAYS),
    Default("actor.param_offload", RUNS, _offload, _OFFLOAD_SAYS),
    Default("actor.optimizer_offload", RUNS, _offload, _OFFLOAD_SAYS),
    Default(
        "actor.torch_compile",
        RUNS,
        lambda look: look.on_gpu and get_path(look.tree, "model.lora") in (MISSING, None),
        "cuda: true, but false beside model.lora, which was never compiled; cpu: false",
    ),
    _per_device("actor.dtype", "bf16", "fp32"),
    _per_device("teacher.dtype", "bf16", "fp32", DISTILS),
    Default("teacher.offload", DISTILS, _offload, "cuda: auto, cpu: false"),
    Default(
        "teacher.max_prompt_length",
        DISTILS,
        lambda look: look.row_length,
        "data.max_prompt_length + max_response_length, where there is a `prompt`",
        beside="prompt",
    ),
    Default(
        "model.attn_implementation",
        RUNS,
        _attention,
        "cuda: varlen (sdpa in fp32 or on padded rows), cpu: sdpa",
    ),
    Default("opd.max_length", DISTILS, lambda look: look.row_length, "data.max_prompt_length + max_response_length"),
    Default(
        "opd.beta",
        DISTILS,
        lambda look: 0.5 if look.get("opd.loss_type", str) == "jsd" else UNSET,
        "0.5 with loss_type jsd, else unset",
    ),
    _per_recipe("grpo.clip_ratio_low", 0.2, 0.2, 0.2),
    _per_recipe("grpo.clip_ratio_high", 0.28, 0.2, 0.2),
    _per_recipe("grpo.clip_ratio_c", 10.0, 3.0, 3.0),
    _per_recipe("grpo.kl_loss_coef", 0.0, 0.001, 0.0),
    Default("reward.function", SAMPLES, _reward_function, "math_reward; eval: the variant's; with tools: environment"),
    _per_device("reward.num_workers", 8, 0, SAMPLES),
    _per_device("trainer.gpus_per_node", 8, 1),
    _per_kind("trainer.val_before_train", grpo=True, opd=False, opd_agent=False, sft=True),
    Default("name", KINDS, _run_name, "kind, model.name and recipe, opd.loss_type or eval.instruction_variant"),
    Default(
        "store.url",
        FILE_KINDS,
        lambda look: f"{look.get('output.root', str).rstrip('/')}/store",
        "output.root/store",
    ),
)

# Sections that a spec must fill: an empty map makes validation name the missing key instead of the missing section.
REQUIRED_SECTIONS: dict[Kind, tuple[str, ...]] = {
    "grpo": ("model",),
    "opd": ("model", "teacher"),
    "opd-agent": ("model", "teacher", "agent"),
    "sft": ("model", "data"),
    "eval": ("model",),
    "passrate": ("model",),
    "convert": ("convert",),
    "pipeline": (),
}


def fill_defaults(kind: Kind, cls: type[Section], tree: dict[str, Any]) -> set[str]:
    """Fill the computed defaults into `tree`; returns the paths that could not be computed from it."""
    for section in REQUIRED_SECTIONS[kind]:
        if section != "teacher" or not tree.get("teachers"):
            tree.setdefault(section, {})
    look = Lookup(kind, cls, tree)
    unresolved: set[str] = set()
    for default in DEFAULTS:
        if kind not in default.kinds:
            continue
        for path in _places(default.path, tree, beside=default.beside):
            if look.has(path):
                continue
            try:
                value = default.value(look)
            except Unresolvable:
                unresolved.add(path)
                continue
            if value is not UNSET and not set_path(tree, path, value):
                unresolved.add(path)
    return unresolved
