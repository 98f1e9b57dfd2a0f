"""Defaults that differ by kind, recipe or device, or follow from another key: the original's tables as data.

They go into the plain tree before it is validated, in the order of the table, so that a validated spec holds concrete
values. Each key's description says its default; all other defaults are on their fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opd.experiment.base import ASKS, DISTILS, FILE_KINDS, KINDS, RUNS, SAMPLES, TRAINS, Kind, Section, joined
from opd.experiment.context import local_context
from opd.experiment.tree import MISSING, field_at, get_path, set_path, strip_optional

UNSET = object()
_CHECKPOINT_FOLDERS = ("", "checkpoints", "actor")
_MICRO, _CAP = "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"
_READ, _READ_CAP = "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu"
_RESPONSES = {"opd-agent": 24576, "eval": 16384}


class Unresolvable(Exception):
    """A default needs a key that is missing or has the wrong type; validation reports that key itself."""


@dataclass
class Lookup:
    """Values as they will be: from the tree, else the field's static default; `section` gets the default."""

    kind: Kind
    cls: type[Section]
    tree: dict[str, Any]
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
    def uses_tools(self) -> bool:
        return self.kind == "opd-agent" or self.has("agent")

    @property
    def has_lora(self) -> bool:
        return get_path(self.tree, "model.lora") not in (MISSING, None)

    def of_teachers(self, key: str) -> list[Any]:
        return [get_path(self.tree, path) for path in places(f"teacher.{key}", self.tree)]

    def files(self, folder: str, *names: str) -> list[str]:
        root = self["data.dir"].rstrip("/")
        return [f"{root}/{folder}/{name}.parquet" for name in names]


def _val_files(look: Lookup) -> Any:
    if look.kind == "passrate":
        return get_path(look.tree, "data.train") if look.has("data.train") else _training_file(look)
    if look.uses_tools:
        return look.files("agent_processed", "val_travel_en", "val_travel_zh")
    has_dapo = look.kind == "grpo" and look["recipe"] != "grpo-native-no-kl"
    folder = f"eval_processed/{look['eval.instruction_variant']}" if look.kind == "eval" else "grpo_processed"
    return look.files(folder, *["val_dapo"] * has_dapo, "val_math500", "val_aime24", "val_aime25")


def _train_files(look: Lookup) -> Any:
    if look.kind in ASKS and not look.has("data.val"):
        raise Unresolvable("data.val")
    return get_path(look.tree, "data.val") if look.kind in ASKS else _training_file(look)  # verl builds one in any case


def _training_file(look: Lookup) -> list[str]:
    return look.files("agent_processed" if look.uses_tools else "grpo_processed", "train")


def _response_length(look: Lookup) -> int:
    length, path = _RESPONSES.get(look.kind, 8192), get_path(look.tree, "model.path")
    context = local_context(path) if isinstance(path, str) and look.kind in SAMPLES else None
    left = (context or 0) - look["data.max_prompt_length"]
    return min(length, left) if left > 0 else length


def _mini_batch(look: Lookup) -> Any:
    batch = look["data.train_batch_size"]
    samples = 1 if look.kind == "sft" else look["rollout.num_samples"]
    ranks = look["trainer.nnodes"] * look["trainer.gpus_per_node"]
    groups = max(1, ranks // max(1, look["actor.ulysses_sequence_parallel_size"]))
    fits = [batch // part for part in (4, 2) if not batch % part and not batch // part * samples % groups]
    return fits[0] if fits else batch


def _reward_function(look: Lookup) -> str:
    if look.has("reward.path"):
        return "custom"
    if look.uses_tools:
        return "environment"
    variant = look["eval.instruction_variant"] if look.kind in ASKS else "boxed"
    return {"dapo": "math_dapo", "none": "math_verify"}.get(variant, "math_reward")


def _basename(look: Lookup) -> Any:
    if name := look["model.path"].rstrip("/").rpartition("/")[2]:
        return name
    raise Unresolvable("model.path")


def _run_name(look: Lookup) -> str:
    """Return a name like the original's: `opd-qwen3-1-7b-reverse-kl`; a conversion's has its checkpoint's folders."""
    if look.kind == "convert":
        folders = [part for part in look["convert.checkpoint"].split("/") if part not in _CHECKPOINT_FOLDERS]
        return joined([look.kind, *folders[-2:]])
    keys = {"grpo": "recipe", "sft": "", **dict.fromkeys(ASKS, "eval.instruction_variant")}
    algorithm = keys.get(look.kind, "opd.loss_type")
    return joined([look.kind, *(look[path] for path in ("model.name", algorithm) if path)])


def _offload(look: Lookup) -> bool | str:
    return look.on_gpu and ("auto" if look.kind in TRAINS else True)


def _score_budget(look: Lookup) -> Any:
    longest = max((given for given in look.of_teachers("max_prompt_length") if isinstance(given, int)), default=0)
    return max(3 * look.row_length, longest + look["data.max_response_length"])


def _attention(look: Lookup) -> str:
    is_packed = look.on_gpu and look["actor.use_remove_padding"]
    in_fp32 = look["actor.dtype"] == "fp32" or (look.kind in DISTILS and "fp32" in look.of_teachers("dtype"))
    return "varlen" if is_packed and not in_fp32 else "sdpa"


def _cut(size: str, cap: str, tokens: str) -> Callable[[Lookup], str]:
    """Return the default of actor.cut_updates or actor.cut_reads: sizes that the file gives outrank the plan."""

    def value(look: Lookup) -> str:
        by_rows = get_path(look.tree, "actor.use_dynamic_bsz") is False
        is_given = by_rows or look.has(f"actor.{size}", f"actor.{cap}")
        return "given" if is_given and not look.has(f"opd.{tokens}") else "plan"

    return value


def _dynamic(look: Lookup) -> bool:
    sizes = ((_MICRO, _CAP), (_READ, _READ_CAP))
    capped = any(look.has(f"actor.{cap}") and not look.has(f"actor.{rows}") for rows, cap in sizes)
    return capped or (look.kind == "grpo" and look["recipe"] == "grpo")


DEFAULTS: tuple[tuple[str, tuple[Kind, ...], Any], ...] = (
    # (path, kinds, value): a map has a value for each kind, a pair has one for cuda and one for cpu.
    # Before the sizes of micro-batches get defaults of their own.
    ("actor.cut_updates", RUNS, _cut(_MICRO, _CAP, "train_tokens")),
    ("actor.cut_reads", RUNS, _cut(_READ, _READ_CAP, "read_tokens")),
    ("actor.use_dynamic_bsz", RUNS, _dynamic),
    ("model.name", RUNS, _basename),
    ("data.train_batch_size", RUNS, {"grpo": 512, "passrate": 512, "eval": 64} | dict.fromkeys((*DISTILS, "sft"), 256)),
    ("data.max_prompt_length", RUNS, dict.fromkeys(RUNS, 2048) | {"opd-agent": 4096}),
    ("data.max_response_length", RUNS, _response_length),
    ("data.val", SAMPLES, _val_files),
    ("data.train", SAMPLES, _train_files),
    ("data.num_workers", RUNS, (8, 0)),
    ("rollout.name", SAMPLES, ("vllm", "cpu")),
    ("rollout.num_samples", SAMPLES, dict.fromkeys(SAMPLES, 8) | dict.fromkeys(DISTILS, 1)),
    ("rollout.logprobs_every", SAMPLES, (10, 1)),
    ("rollout.num_agent_workers", SAMPLES, (8, 0)),
    ("rollout.val.temperature", ("grpo", "eval", "passrate"), {"grpo": 0.7, "eval": 0.7, "passrate": 1.0}),
    ("rollout.val.temperature", DISTILS, lambda look: 0.6 if look["data.enable_thinking"] else 0.7),
    ("rollout.val.num_samples", ("passrate",), {"passrate": 8}),
    ("rollout.val.top_p", ("passrate",), {"passrate": 1.0}),
    ("rollout.val.top_k", ("passrate",), {"passrate": -1}),
    ("eval.save_generations", ASKS, {"eval": True, "passrate": False}),
    ("trainer.gpus_per_node", RUNS, (8, 1)),
    ("actor.learning_rate", RUNS, lambda look: 1e-5 if look.has_lora else 1e-6),
    ("actor.ppo_mini_batch_size", RUNS, _mini_batch),
    (f"actor.{_MICRO}", RUNS, dict.fromkeys(RUNS, 4) | dict.fromkeys(ASKS, 2)),
    (f"actor.{_READ}", RUNS, lambda look: look[f"actor.{_MICRO}"]),
    (f"actor.{_CAP}", RUNS, lambda look: 2 * look.row_length),
    ("actor.use_remove_padding", RUNS, (True, False)),
    ("actor.gradient_checkpointing", RUNS, _offload),
    ("actor.param_offload", RUNS, _offload),
    ("actor.optimizer_offload", RUNS, _offload),
    ("actor.torch_compile", RUNS, lambda look: look.on_gpu and not look.has_lora),
    ("actor.dtype", RUNS, ("bf16", "fp32")),
    ("teacher.dtype", DISTILS, ("bf16", "fp32")),
    ("teacher.offload", DISTILS, _offload),
    ("teacher.max_prompt_length", DISTILS, lambda k: k.row_length if k.has(f"{k.section}.prompt") else UNSET),
    (f"actor.{_READ_CAP}", RUNS, _score_budget),
    ("model.attn_implementation", RUNS, _attention),
    ("opd.max_length", DISTILS, lambda look: look.row_length),
    ("opd.beta", DISTILS, lambda look: 0.5 if look["opd.loss_type"] == "jsd" else UNSET),
    ("grpo.clip_ratio_low", ("grpo",), {"grpo": 0.2}),
    ("grpo.clip_ratio_high", ("grpo",), lambda look: 0.28 if look["recipe"] == "grpo" else 0.2),
    ("grpo.clip_ratio_c", ("grpo",), lambda look: 10.0 if look["recipe"] == "grpo" else 3.0),
    ("grpo.kl_loss_coef", ("grpo",), lambda look: 0.001 if look["recipe"] == "grpo-native" else 0.0),
    ("reward.function", SAMPLES, _reward_function),
    ("reward.num_workers", SAMPLES, (8, 0)),
    ("trainer.val_before_train", TRAINS, {"grpo": True, "sft": True} | dict.fromkeys(DISTILS, False)),
    ("name", KINDS, _run_name),
    ("store.url", FILE_KINDS, lambda look: f"{look['output.root'].rstrip('/')}/store"),
)

# Sections that a spec must fill: an empty map makes validation name the missing key instead of the missing section.
_REQUIRED: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("model", RUNS),
    ("teacher", DISTILS),
    ("agent", ("opd-agent",)),
    ("data", ("sft",)),
    ("convert", ("convert",)),
)


def places(path: str, tree: dict[str, Any]) -> list[str]:
    """Return the paths that a default goes to: a key of `teacher` also goes into each of several `teachers`."""
    section, _, key = path.partition(".")
    several = tree.get("teachers")
    if section != "teacher" or not several or not isinstance(several, dict):
        return [path]
    return [f"teachers.{name}.{key}" for name in several] + [path] * ("teacher" in tree)


def fill_defaults(kind: Kind, cls: type[Section], tree: dict[str, Any]) -> set[str]:
    """Fill the computed defaults into `tree`; return the paths that could not be computed from it."""
    for section, needing in _REQUIRED:
        if kind in needing and (section != "teacher" or not tree.get("teachers")):
            tree.setdefault(section, {})
    look, unresolved = Lookup(kind, cls, tree), set[str]()
    for default, kinds, value in DEFAULTS:
        for path in places(default, tree) if kind in kinds else ():
            if look.has(path):
                continue
            look.section = path.rpartition(".")[0]
            try:
                found = _value(value, look)
            except Unresolvable:
                unresolved.add(path)
                continue
            if found is not UNSET and not set_path(tree, path, found):
                unresolved.add(path)
    return unresolved


def _value(value: Any, look: Lookup) -> Any:
    if isinstance(value, dict):
        return value[look.kind]
    return value[0 if look.on_gpu else 1] if isinstance(value, tuple) else value(look)
