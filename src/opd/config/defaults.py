"""Fills in defaults that differ by kind, recipe or device, or follow from another key: the original's tables as data.

Static defaults are on their fields. The defaults here go into the plain tree before it is validated, in the
order of the table. So a validated spec always holds concrete values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import PydanticUndefined

from opd.config.base import ASKS, DISTILS, FILE_KINDS, KINDS, RUNS, SAMPLES, TRAINS, Kind, Section, joined
from opd.config.context import local_context
from opd.config.tree import MISSING, field_at, get_path, set_path

_T = TypeVar("_T")
UNSET = object()
_CHECKPOINT_FOLDERS = ("", "checkpoints", "actor")
_SIZES = {
    "update": ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_max_token_len_per_gpu"),
    "read": ("actor.log_prob_micro_batch_size_per_gpu", "actor.log_prob_max_token_len_per_gpu"),
}
"""verl's keys of the size of a micro-batch, in rows and in tokens, of an update and of a forward without a gradient."""


class Unresolvable(Exception):
    """A default needs a key that is missing or has the wrong type; validation reports that key itself."""


@dataclass(frozen=True)
class Lookup:
    """Values as they will be: from the tree, else the field's static default."""

    kind: Kind
    cls: type[Section]
    tree: dict[str, Any]

    def has(self, path: str) -> bool:
        """Return True where the tree has the path."""
        return get_path(self.tree, path) is not MISSING

    def get(self, path: str, type_: type[_T]) -> _T:
        """Return the value at path, which must be of `type_`, else raise `Unresolvable`."""
        value = get_path(self.tree, path)
        if value is MISSING:
            field = field_at(self.cls, path)
            value = field.default if field is not None else MISSING
        if value is PydanticUndefined or type(value) is not type_:
            raise Unresolvable(path)
        return value

    @property
    def on_gpu(self) -> bool:
        return self.get("device", str) != "cpu"

    @property
    def row_length(self) -> int:
        return self.get("data.max_prompt_length", int) + self.get("data.max_response_length", int)

    @property
    def uses_tools(self) -> bool:
        return self.kind == "opd-agent" or self.has("agent")

    @property
    def trains_adapters(self) -> bool:
        return get_path(self.tree, "model.lora") not in (MISSING, None)

    def of_teachers(self, key: str) -> list[Any]:
        """Return what is given for a key of each teacher."""
        return [get_path(self.tree, path) for path in places(f"teacher.{key}", self.tree)]


@dataclass(frozen=True)
class Default:
    """One computed default: `value(lookup)` for the kinds that have the path, `says` for people.

    `sibling` is a key of the same section without which there is no default.
    """

    path: str
    kinds: tuple[Kind, ...]
    value: Callable[[Lookup], Any]
    says: str
    by_kind: dict[Kind, Any] | None = None
    sibling: str = ""


def _per_kind(path: str, **values: Any) -> Default:
    by_kind = {kind: values[kind.replace("-", "_")] for kind in KINDS if kind.replace("-", "_") in values}
    says = ", ".join(f"{kind}: {value}" for kind, value in by_kind.items())
    return Default(path, tuple(by_kind), lambda look: by_kind[look.kind], says, by_kind)


def _per_device(path: str, cuda: Any, cpu: Any, kinds: tuple[Kind, ...] = RUNS) -> Default:
    return Default(path, kinds, lambda look: cuda if look.on_gpu else cpu, f"cuda: {cuda}, cpu: {cpu}".lower())


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
    names = ["val_math500", "val_aime24", "val_aime25"]
    if look.kind == "eval":
        return _in_dir(look, f"eval_processed/{look.get('eval.instruction_variant', str)}", *names)
    if look.kind == "grpo" and look.get("recipe", str) != "grpo-native-no-kl":
        names.insert(0, "val_dapo")
    return _in_dir(look, "grpo_processed", *names)


def _train_files(look: Lookup) -> Any:
    if look.kind not in ASKS:
        return _training_file(look)
    val = get_path(look.tree, "data.val")  # verl builds a training set even for validation only
    if not isinstance(val, list | str):
        raise Unresolvable("data.val")
    return val


def _training_file(look: Lookup) -> list[str]:
    return _in_dir(look, "agent_processed" if look.uses_tools else "grpo_processed", "train")


_RESPONSES = {"opd-agent": 24576, "eval": 16384}


def _response_length(look: Lookup) -> int:
    """Return the kind's length, or less where a local model's context is shorter."""
    length = _RESPONSES.get(look.kind, 8192)
    path = get_path(look.tree, "model.path")
    context = local_context(path) if isinstance(path, str) and look.kind in SAMPLES else None
    left = (context or 0) - look.get("data.max_prompt_length", int)
    return min(length, left) if left > 0 else length


def _mini_batch(look: Lookup) -> int:
    """Return a quarter of the batch, as the original's, or more where the ranks could not share that evenly."""
    batch = look.get("data.train_batch_size", int)
    samples = 1 if look.kind == "sft" else look.get("rollout.num_samples", int)
    ranks = look.get("trainer.nnodes", int) * look.get("trainer.gpus_per_node", int)
    groups = max(1, ranks // max(1, look.get("actor.ulysses_sequence_parallel_size", int)))
    fits = [batch // part for part in (4, 2) if not batch % part and not batch // part * samples % groups]
    return fits[0] if fits else batch


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
    """Return a name like the original's: `opd-qwen3-1-7b-reverse-kl`; a conversion's follows its checkpoint's folders."""
    if look.kind == "convert":
        folders = [part for part in look.get("convert.checkpoint", str).split("/") if part not in _CHECKPOINT_FOLDERS]
        return joined([look.kind, *folders[-2:]])
    if look.kind == "sft":
        return joined([look.kind, look.get("model.name", str)])
    algorithm = {"grpo": "recipe", **dict.fromkeys(ASKS, "eval.instruction_variant")}.get(look.kind, "opd.loss_type")
    return joined([look.kind, look.get("model.name", str), look.get(algorithm, str)])


def _offload(look: Lookup) -> bool | str:
    """Return `auto` for kinds that train: they make a memory plan."""
    if not look.on_gpu:
        return False
    return "auto" if look.kind in TRAINS else True


def _val_temperature(look: Lookup) -> float:
    """Return the temperature of validation; pass rates are measured as training samples."""
    if look.kind == "passrate":
        return 1.0
    return 0.6 if look.kind in DISTILS and look.get("data.enable_thinking", bool) else 0.7


def _score_budget(look: Lookup) -> int:
    """Return a budget that holds the longest row of student and teachers."""
    longest = max((given for given in look.of_teachers("max_prompt_length") if isinstance(given, int)), default=0)
    return max(3 * look.row_length, longest + look.get("data.max_response_length", int))


def _attention(look: Lookup) -> str:
    if not look.on_gpu or not look.get("actor.use_remove_padding", bool):
        return "sdpa"
    in_fp32 = look.get("actor.dtype", str) == "fp32"
    return "sdpa" if in_fp32 or (look.kind in DISTILS and "fp32" in look.of_teachers("dtype")) else "varlen"


def _cut_by(what: str, tokens: str) -> Default:
    """Make the default of actor.cut_updates or actor.cut_reads: sizes that the file gives outrank the plan."""

    def value(look: Lookup) -> str:
        rows_asked = get_path(look.tree, "actor.use_dynamic_bsz") is False
        is_given = rows_asked or any(look.has(path) for path in _SIZES[what])
        return "given" if is_given and not look.has(f"opd.{tokens}") else "plan"

    keys = ", ".join(_SIZES[what])
    return Default(f"actor.cut_{what}s", RUNS, value, f"given where {keys} or use_dynamic_bsz: false are given")


def _dynamic(look: Lookup) -> bool:
    """Return True for the recipe grpo, and where the file gives token caps alone."""
    capped = any(look.has(caps) and not look.has(rows) for rows, caps in _SIZES.values())
    return (look.kind == "grpo" and look.get("recipe", str) == "grpo") or capped


_OFFLOAD_SAYS = "cuda: true, with kind opd, opd-agent: auto; cpu: false"
_MICRO = "actor.ppo_micro_batch_size_per_gpu"

DEFAULTS: tuple[Default, ...] = (
    # Before the sizes of micro-batches get defaults of their own.
    _cut_by("update", "train_tokens"),
    _cut_by("read", "read_tokens"),
    Default("actor.use_dynamic_bsz", RUNS, _dynamic, "true for the recipe grpo, and for token caps alone; else false"),
    Default("model.name", RUNS, _basename, "last part of model.path"),
    _per_kind("data.train_batch_size", grpo=512, opd=256, opd_agent=256, sft=256, eval=64, passrate=512),
    _per_kind("data.max_prompt_length", grpo=2048, opd=2048, opd_agent=4096, sft=2048, eval=2048, passrate=2048),
    Default(
        "data.max_response_length",
        RUNS,
        _response_length,
        "8192, opd-agent: 24576, eval: 16384; less where the context of a model in a local folder is shorter",
    ),
    Default(
        "data.val",
        SAMPLES,
        _val_files,
        "the kind's (and recipe's or variant's) validation sets below data.dir; passrate: data.train",
    ),
    Default("data.train", SAMPLES, _train_files, "the kind's training file below data.dir; eval: data.val"),
    Default("data.split.of", RUNS, lambda look: 2, "2, where there is a `part`", sibling="part"),
    Default("data.split.seed", RUNS, lambda look: 42, "42, where there is a `part`", sibling="part"),
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
    _per_device("trainer.gpus_per_node", 8, 1),
    Default(
        "actor.learning_rate",
        RUNS,
        lambda look: 1e-5 if look.trains_adapters else 1e-6,
        "1e-6; with model.lora ten times as much",
    ),
    Default(
        "actor.ppo_mini_batch_size",
        RUNS,
        _mini_batch,
        "a quarter of data.train_batch_size, or more where the ranks cannot share that evenly",
    ),
    Default(_MICRO, RUNS, lambda look: 2 if look.kind in ASKS else 4, "4, eval, passrate: 2"),
    Default("actor.log_prob_micro_batch_size_per_gpu", RUNS, lambda look: look.get(_MICRO, int), _MICRO),
    Default("actor.ppo_max_token_len_per_gpu", RUNS, lambda look: 2 * look.row_length, "2 x (prompt + response)"),
    _per_device("actor.use_remove_padding", True, False),
    Default("actor.gradient_checkpointing", RUNS, _offload, _OFFLOAD_SAYS),
    Default("actor.param_offload", RUNS, _offload, _OFFLOAD_SAYS),
    Default("actor.optimizer_offload", RUNS, _offload, _OFFLOAD_SAYS),
    Default(
        "actor.torch_compile",
        RUNS,
        lambda look: look.on_gpu and not look.trains_adapters,
        "cuda: true, but false with model.lora, which was never compiled; cpu: false",
    ),
    _per_device("actor.dtype", "bf16", "fp32"),
    _per_device("teacher.dtype", "bf16", "fp32", DISTILS),
    Default("teacher.offload", DISTILS, _offload, "cuda: auto, cpu: false"),
    Default(
        "teacher.max_prompt_length",
        DISTILS,
        lambda look: look.row_length,
        "data.max_prompt_length + max_response_length, where there is a `prompt`",
        sibling="prompt",
    ),
    Default(
        "actor.log_prob_max_token_len_per_gpu",
        RUNS,
        _score_budget,
        "3 x (prompt + response), or the longest row of a teacher with prompts of its own where that is more",
    ),
    Default("model.attn_implementation", RUNS, _attention, "cuda: varlen (sdpa in fp32 or on padded rows), cpu: sdpa"),
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
_REQUIRED: dict[Kind, tuple[str, ...]] = {
    **dict.fromkeys(RUNS, ("model",)),
    **dict.fromkeys(DISTILS, ("model", "teacher")),
    "opd-agent": ("model", "teacher", "agent"),
    "sft": ("model", "data"),
    "convert": ("convert",),
}


def places(path: str, tree: dict[str, Any], *, sibling: str = "") -> list[str]:
    """Return the paths that a default goes to: a key of `teacher` also goes into each of several `teachers`.

    Args:
        sibling: only sections that have this key count.
    """
    section, _, key = path.partition(".")
    several = tree.get("teachers")
    found = [path]
    if section == "teacher" and several and isinstance(several, dict):
        found = [f"teachers.{name}.{key}" for name in several] + [path] * ("teacher" in tree)
    if not sibling:
        return found
    return [place for place in found if get_path(tree, f"{place.rpartition('.')[0]}.{sibling}") is not MISSING]


def fill_defaults(kind: Kind, cls: type[Section], tree: dict[str, Any]) -> set[str]:
    """Fill the computed defaults into `tree`; return the paths that could not be computed from it."""
    for section in _REQUIRED.get(kind, ()):
        if section != "teacher" or not tree.get("teachers"):
            tree.setdefault(section, {})
    look = Lookup(kind, cls, tree)
    unresolved: set[str] = set()
    for default in DEFAULTS:
        if kind not in default.kinds:
            continue
        for path in places(default.path, tree, sibling=default.sibling):
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


__all__ = ["ASKS", "DEFAULTS", "DISTILS", "RUNS", "SAMPLES", "TRAINS", "Default", "Lookup", "fill_defaults"]
