"""Defaults that differ by kind, recipe or device, or follow from another key: the original's tables as data.

They go into the plain tree before it is validated, in the order of the table. All other defaults are on their fields.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from opd.experiment.base import ASKS, DISTILS, RUNS, SAMPLES, TRAINS, Kind, Section, joined
from opd.experiment.tree import MISSING, field_at, get_path, section_of, set_path, strip_optional

CONTEXT = "max_position_embeddings"
_MINI, _MICRO = "actor.ppo_mini_batch_size", "actor.ppo_micro_batch_size_per_gpu"
_READ, _CAP = "actor.log_prob_micro_batch_size_per_gpu", "actor.ppo_max_token_len_per_gpu"
_READ_CAP = "actor.log_prob_max_token_len_per_gpu"


class Unresolvable(Exception):
    """The lack of a key, or its wrong type, that a default follows from; validation reports the key itself."""


@dataclass
class Lookup:
    """Values as they will be: from the tree, else the field's static default; `section` gets the default."""

    kind: Kind
    cls: type[Section]
    tree: dict[str, Any]
    count_gpus: Callable[[], int | None]
    section: str = ""

    def has(self, *paths: str) -> bool:
        return any(get_path(self.tree, path) is not MISSING for path in paths)

    def __getitem__(self, path: str) -> Any:
        """Return the value at path; raise `Unresolvable` for a missing value, or one of another type than the key's."""
        field, value = field_at(self.cls, path), get_path(self.tree, path)
        kind = None if field is None else strip_optional(field.annotation)
        value = field.default if value is MISSING and field is not None else value
        if type(value) is not (kind if kind in (int, bool) else str):
            raise Unresolvable(path)
        return value

    @property
    def on_gpu(self) -> bool:
        return bool(self["device"] != "cpu")

    @property
    def row_length(self) -> int:
        return int(self["data.max_prompt_length"] + self["data.max_response_length"])

    @property
    def num_samples(self) -> int:
        return 1 if self.kind == "sft" else int(self["rollout.num_samples"])

    @property
    def num_groups(self) -> int:
        ranks = self["trainer.nnodes"] * self["trainer.gpus_per_node"]
        return int(max(1, ranks // max(1, self["actor.ulysses_sequence_parallel_size"])))

    @property
    def uses_tools(self) -> bool:
        return self.kind == "opd-agent" or self.has("agent")

    def of_teachers(self, key: str) -> list[Any]:
        return [get_path(self.tree, path) for path in places(f"teacher.{key}", self.tree)]

    def files(self, folder: str, *names: str) -> list[str]:
        root = self["data.dir"].rstrip("/")
        return [f"{root}/{folder}/{name}.parquet" for name in names]


def _val_files(look: Lookup) -> Any:
    validates = look.kind not in TRAINS or look["trainer.test_freq"] not in (0, -1) or look["trainer.val_before_train"]
    if look.kind == "passrate" or not validates:  # verl builds a data set in any case
        return _train_files(look)
    if look.kind == "sft":
        return MISSING
    if look.uses_tools:
        return look.files("agent_processed", "val_travel_en", "val_travel_zh")
    has_dapo = look.kind == "grpo" and look["recipe"] != "grpo-native-no-kl"
    folder = f"eval_processed/{look['eval.instruction_variant']}" if look.kind == "eval" else "grpo_processed"
    return look.files(folder, *["val_dapo"] * has_dapo, "val_math500", "val_aime24", "val_aime25")


def _train_files(look: Lookup) -> Any:
    """Return the training file; where nothing trains the validation's, of which verl builds a data set in any case."""
    given = "data.val" if look.kind in ASKS and look.has("data.val") else "data.train"
    files = look.files("agent_processed" if look.uses_tools else "grpo_processed", "train")
    return get_path(look.tree, given) if look.has(given) else files


def context_of(config: Any) -> int | None:
    """Return the tokens of the longest row that a Hugging Face config allows; None means that it does not say."""
    found = _of_text(config, CONTEXT)
    return found if isinstance(found, int) else None


def layers_of(config: Any) -> list[str]:
    """Return the type of each layer where a Hugging Face config lists them, or the window that all of them have."""
    found = _of_text(config, "layer_types")
    if isinstance(found, list):
        return [str(kind) for kind in found]
    has_window = _of_text(config, "sliding_window") and _of_text(config, "use_sliding_window") is not False
    return ["sliding_attention"] if has_window else []


def head_changes_of(config: Any) -> dict[str, Any]:
    """Return the keys by which a Hugging Face config caps or scales the head's output."""
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling")
    return {name: value for name in names if (value := _of_text(config, name)) not in (None, 1)}


def _of_text(config: Any, key: str) -> Any:
    """Return the value of a Hugging Face config, or of its part for text."""
    parts = [config, config.get("text_config")] if isinstance(config, Mapping) else []
    return next((part[key] for part in parts if isinstance(part, Mapping) and part.get(key) is not None), None)


def _mini_batch(look: Lookup) -> Any:
    batch, samples, groups = look["data.train_batch_size"], look.num_samples, look.num_groups
    fits = [batch // part for part in (4, 2) if not batch % part and not batch // part * samples % groups]
    return fits[0] if fits else batch


def micro_batch(kind: Kind, rows: int) -> int:
    """Return the default rows of a micro-batch: at most 4 (2 where nothing trains), and a divisor of a rank's rows."""
    return next(size for size in (2 if kind in ASKS else 4, 2, 1) if rows % size == 0)


def _reward_function(look: Lookup) -> str:
    if look.has("reward.path"):
        return "custom"
    if look.uses_tools:
        return "environment"
    variant = look["eval.instruction_variant"] if look.kind in ASKS else "boxed"
    return {"dapo": "math_dapo", "none": "math_verify"}.get(variant, "math_reward")


def _run_name(look: Lookup) -> str:
    """Return a name like the original's: `opd-qwen3-1-7b-reverse-kl`; a conversion's has its checkpoint's folders."""
    if look.kind == "convert":
        folders = [part for part in look["convert.checkpoint"].split("/") if part not in ("", "checkpoints", "actor")]
        return joined([look.kind, *folders[-2:]])
    algorithms = ("recipe", "eval.instruction_variant", "opd.loss_type")
    return joined([look.kind, look["model.name"], *(look[path] for path in algorithms if field_at(look.cls, path))])


def _score_budget(look: Lookup) -> Any:
    longest = max((given for given in look.of_teachers("max_prompt_length") if isinstance(given, int)), default=0)
    return max(3 * look.row_length, longest + look["data.max_response_length"])


def _attention(look: Lookup) -> str:
    is_packed, dtypes = look.on_gpu and look["actor.use_remove_padding"], look.of_teachers("dtype")
    return "varlen" if is_packed and "fp32" not in [look["actor.dtype"], *dtypes] else "sdpa"


def _cut(look: Lookup, size: str, cap: str, tokens: str) -> str:
    """Return the default of actor.cut_updates or actor.cut_reads: sizes that the file gives outrank the plan."""
    by_rows = get_path(look.tree, "actor.use_dynamic_bsz") is False
    return "given" if (by_rows or look.has(size, cap)) and not look.has(tokens) else "plan"


def _dynamic(look: Lookup) -> bool:
    capped = any(look.has(cap) and not look.has(rows) for rows, cap in ((_MICRO, _CAP), (_READ, _READ_CAP)))
    return capped or (look.kind == "grpo" and look["recipe"] == "grpo")


def _temperature(look: Lookup) -> float:
    if look.kind in DISTILS and look["data.enable_thinking"]:
        return 0.6
    return 1.0 if look.kind == "passrate" else 0.7


_OFFLOAD: Any = (lambda look: "auto" if look.kind in TRAINS else True, False)
# A map has a value for each kind with a default. A pair has the values of cuda and cpu. A function returns the value.
DEFAULTS: dict[str, Any] = {
    "device": dict.fromkeys(RUNS, lambda look: "cpu" if look.count_gpus() == 0 else MISSING),
    # Before the sizes of micro-batches get defaults of their own.
    "actor.cut_updates": lambda look: _cut(look, _MICRO, _CAP, "opd.train_tokens"),
    "actor.cut_reads": lambda look: _cut(look, _READ, _READ_CAP, "opd.read_tokens"),
    "actor.use_dynamic_bsz": _dynamic,
    "model.name": lambda look: look["model.path"].rstrip("/").rpartition("/")[2] or MISSING,
    "data.train_batch_size": lambda look: {"grpo": 512, "passrate": 512, "eval": 64}.get(look.kind, 256),
    "data.max_prompt_length": lambda look: 4096 if look.kind == "opd-agent" else 2048,
    "data.max_response_length": lambda look: {"opd-agent": 24576, "eval": 16384}.get(look.kind, 8192),
    "trainer.val_before_train": lambda look: look.kind not in DISTILS,
    "data.val": _val_files,
    "data.train": dict.fromkeys(SAMPLES, _train_files),
    "data.num_workers": (8, 0),
    "rollout.name": ("vllm", "cpu"),
    "rollout.num_samples": lambda look: 1 if look.kind in DISTILS else 8,
    "rollout.logprobs_every": (10, 1),
    "rollout.num_agent_workers": (8, 0),
    "rollout.val.temperature": _temperature,
    "rollout.val.num_samples": {"passrate": 8},
    "rollout.val.top_p": {"passrate": 1.0},
    "rollout.val.top_k": {"passrate": -1},
    "eval.save_generations": {"eval": True, "passrate": False},
    "trainer.gpus_per_node": (lambda look: (look.count_gpus() if look["trainer.nnodes"] == 1 else 0) or 8, 1),
    "actor.learning_rate": lambda look: 1e-5 if look.has("model.lora") else 1e-6,
    _MINI: _mini_batch,
    _MICRO: lambda look: micro_batch(look.kind, look[_MINI] * look.num_samples // look.num_groups),
    _READ: lambda look: look[_MICRO],
    _CAP: lambda look: 2 * look.row_length,
    "actor.use_remove_padding": (True, False),
    "actor.gradient_checkpointing": _OFFLOAD,
    "actor.param_offload": _OFFLOAD,
    "actor.optimizer_offload": _OFFLOAD,
    "actor.torch_compile": lambda look: look.on_gpu and not look.has("model.lora"),
    "actor.dtype": ("bf16", "fp32"),
    "teacher.dtype": ("bf16", "fp32"),
    "teacher.offload": _OFFLOAD,
    "teacher.max_prompt_length": lambda look: look.row_length if look.has(f"{look.section}.prompt") else MISSING,
    _READ_CAP: _score_budget,
    "model.attn_implementation": _attention,
    "opd.max_length": lambda look: look.row_length,
    "opd.beta": lambda look: 0.5 if look["opd.loss_type"] == "jsd" else MISSING,
    "grpo.clip_ratio_high": lambda look: 0.28 if look["recipe"] == "grpo" else 0.2,
    "grpo.clip_ratio_c": lambda look: 10.0 if look["recipe"] == "grpo" else 3.0,
    "grpo.kl_loss_coef": lambda look: 0.001 if look["recipe"] == "grpo-native" else 0.0,
    "reward.function": _reward_function,
    "name": dict.fromkeys((*RUNS, "convert"), _run_name),
    "store.url": lambda look: f"{look['output.root'].rstrip('/')}/store",
}


def places(path: str, tree: dict[str, Any]) -> list[str]:
    """Return the paths that a default goes to: a key of `teacher` also goes into each of several `teachers`."""
    section, _, key = path.partition(".")
    if section != "teacher":
        return [path]
    several = tree.get("teachers")
    named = several if isinstance(several, dict) else {}
    return [f"teachers.{name}.{key}" for name in named] + [path] * ("teacher" in tree)


def fill_defaults(
    kind: Kind, cls: type[Section], tree: dict[str, Any], count_gpus: Callable[[], int | None]
) -> list[str]:
    """Fill the computed defaults into `tree`, as far as the keys that they follow from are right; return all paths."""
    # An empty map makes validation name the missing key instead of the missing section.
    for name in (name for name, field in cls.model_fields.items() if field.is_required() and section_of(field)):
        tree.setdefault(name, {})
    if kind in DISTILS and not tree.get("teachers") and get_path(tree, "opd.teacher_answers") is MISSING:
        tree.setdefault("teacher", {})
    look = Lookup(kind, cls, tree, count_gpus)
    given = {key: value.get(kind, MISSING) if isinstance(value, dict) else value for key, value in DEFAULTS.items()}
    keys = [key for key in given if given[key] is not MISSING and field_at(cls, key)]
    values = {path: given[key] for key in keys for path in places(key, tree)}
    for path, value in values.items():
        look.section = path.rpartition(".")[0]
        if look.has(path):
            continue
        with suppress(Unresolvable):
            found = value[0 if look.on_gpu else 1] if isinstance(value, tuple) else value
            found = found(look) if callable(found) else found
            if found is not MISSING:
                set_path(tree, path, found)
    return list(values)
