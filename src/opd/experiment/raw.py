"""Text from outside a file: values for a key's type, verl's names of keys, and raw Hydra overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_origin

from pydantic.fields import FieldInfo

from opd.experiment.algorithm import Opd
from opd.experiment.base import Section
from opd.experiment.errors import Problem, SpecError, nearest
from opd.experiment.reader import read_text
from opd.experiment.refusals import REFUSED_VERL_KEYS, holds_secret, refused_key
from opd.experiment.sections import Split
from opd.experiment.tree import field_at, leaf_paths, set_path, strip_optional
from opd.redaction import REDACTED

_ACTOR, _MODEL, _REF, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "ref", "rollout"))
_FSDP, _BUDGET = f"{_ACTOR}.fsdp_config", "log_prob_max_token_len_per_gpu"

# (verl's section, ours, keys that carry one another unchanged: a name that both have, or verl's name:ours).
# Of several keys of verl with one key of ours the first is read; all of them are written.
_SECTIONS: tuple[tuple[str, str, str], ...] = (
    ("data", "data", "train_files:train val_files:val train_batch_size max_prompt_length max_response_length"),
    ("data", "data", "filter_overlong_prompts:filter_overlong truncation shuffle dataloader_num_workers:num_workers"),
    ("data", "data", "train_max_samples:max_train_samples val_max_samples:max_val_samples"),
    (_MODEL, "model", "path trust_remote_code"),
    (_MODEL, "actor", "use_remove_padding enable_gradient_checkpointing:gradient_checkpointing"),
    (f"{_ACTOR}.optim", "actor", "lr:learning_rate lr_scheduler_type:lr_schedule min_lr_ratio"),
    (f"{_ACTOR}.optim", "actor", "lr_warmup_steps:num_warmup_steps weight_decay betas clip_grad:grad_clip"),
    (_ACTOR, "actor", "grad_clip ppo_epochs ppo_mini_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz"),
    (_ACTOR, "actor", "ppo_max_token_len_per_gpu ulysses_sequence_parallel_size use_torch_compile:torch_compile"),
    (_FSDP, "actor", "use_torch_compile:torch_compile param_offload optimizer_offload"),
    (_ACTOR, "grpo", "clip_ratio_low clip_ratio_high clip_ratio_c kl_loss_coef kl_loss_type entropy_coeff"),
    (_ACTOR, "grpo", "loss_agg_mode"),
    ("algorithm", "grpo", "norm_adv_by_std_in_grpo:norm_adv_by_std"),
    (_ROLLOUT, "actor", "log_prob_micro_batch_size_per_gpu"),
    (_REF, "actor", "log_prob_micro_batch_size_per_gpu"),
    (_ROLLOUT, "actor", _BUDGET),
    (_REF, "actor", _BUDGET),
    (_ROLLOUT, "rollout", "n:num_samples temperature top_p top_k"),
    (f"{_ROLLOUT}.val_kwargs", "rollout.val", "n:num_samples temperature top_p top_k"),
    (_ROLLOUT, "rollout", "tensor_model_parallel_size:tensor_parallel_size gpu_memory_utilization free_cache_engine"),
    (_ROLLOUT, "rollout", "enforce_eager max_num_seqs max_num_batched_tokens agent.num_workers:num_agent_workers"),
    (f"{_ROLLOUT}.multi_turn", "agent", "max_assistant_turns max_tool_response_length max_parallel_calls"),
    (f"{_ROLLOUT}.multi_turn", "agent", "format:tool_format"),
    ("reward", "reward", "num_workers"),
    ("trainer", "trainer", "nnodes n_gpus_per_node:gpus_per_node"),
    ("trainer", "", "device"),
    ("trainer", "trainer", "logger:loggers project_name:project total_epochs total_training_steps:total_steps"),
    ("trainer", "trainer", "save_freq test_freq val_before_train"),
)
VERL_KEYS: tuple[tuple[str, str], ...] = tuple(
    (f"{theirs}.{name.partition(':')[0]}", f"{ours}.{name.rpartition(':')[2]}".lstrip("."))
    for theirs, ours, names in _SECTIONS
    for name in names.split()
)
"""(verl's key, the spec's path)."""
ALSO_READ: dict[str, str] = {
    **{f"opd.{path}": f"opd.{path}" for path, _ in leaf_paths(Opd)},
    **{f"opd.teacher.{name}": f"teacher.{name}" for name in ("path", "trust_remote_code", "dtype", "offload")},
    "actor_rollout_ref.ref.model.path": "teacher.path",
    "data.seed": "seed",
    **{f"data.split.{path}": f"data.split.{path}" for path, _ in leaf_paths(Split)},
}
"""Keys that are read but never written: ours as people type them among verl's, the original's name for the teacher."""
SPEC_PATH_OF: dict[str, str] = {**dict(VERL_KEYS), **ALSO_READ}

# key, optional @package, `=`, value; a deletion is `~key`
_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_BRACED = re.compile(r"\{((?:(?!: )[^{}])*)\}")  # a list as Helm's --set has it, no map
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_GUARDED = (*SPEC_PATH_OF, *REFUSED_VERL_KEYS)
_OURS = ("opd.", "run.")
"""Beginnings of keys that are ours: verl's config has none of them."""
_NOTHING = {"0", "0.0", "false", "null", "none"}
"""Values of verl's keys that ask for nothing."""
_POLICY_LOSS = re.compile(rf"{re.escape(_ACTOR)}\.(use_kl_loss|clip_ratio|calculate_entropy|policy_loss\..*)")
"""verl's keys of the policy loss that the spec does not carry."""


@dataclass(frozen=True)
class RawOverride:
    """A parsed raw override; `value` is None for `~key`."""

    prefix: str
    key: str
    value: str | None


def parse_raw(text: str) -> RawOverride | None:
    """Return the parts of a raw override, or None if the text is none."""
    match = _OVERRIDE.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        return None
    return RawOverride(match["prefix"], match["key"], match["value"])


def parse_value(text: str, field: FieldInfo, path: str, source: str, problems: list[Problem]) -> Any:
    """Return the value that `text` means for `field`; append a Problem and return None for a text without one."""

    kind = strip_optional(field.annotation)
    if kind is str or get_origin(kind) is Literal:
        return unquote(text)
    if kind is bool and (word := text.strip().lower()) in _TRUTHS:
        return _TRUTHS[word]
    if get_origin(kind) is tuple and (braced := _BRACED.fullmatch(text.strip())):
        fix = f"[{', '.join(part.strip() for part in braced[1].split(','))}]"
        problems.append(Problem(path=path, value=text, rule="a list is written in [ ]", fix=fix, source=source))
        return None
    try:  # numbers; lists and maps in YAML's flow style; a bare word stays a text
        return read_text(f"value: {text}", origin=path).tree["value"]
    except SpecError as error:
        problems += [replace(problem, path=path, value=text, source=source) for problem in error.problems]
        return None


def assign(
    tree: dict[str, Any], cls: type[Section], path: str, text: str, source: str, problems: list[Problem]
) -> None:
    """Set a key that the kind has to the value of a text; `null` unsets it, as in Helm."""
    field = field_at(cls, path)
    assert field is not None, path
    value = None if text == "null" else parse_value(text, field, path, source, problems)
    if not set_path(tree, path, value):
        problems.append(Problem(path=path, value=text, rule="a key above it holds a value", source=source))


def unquote(text: str) -> str:
    """Return the text without one pair of surrounding quotes."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def fold(
    tree: dict[str, Any], cls: type[Section], texts: Iterable[Any], source: str, problems: list[Problem]
) -> dict[str, str]:
    """Apply raw overrides to the tree in order: keys the spec has become spec values, others join `overrides`.

    Returns the source of each path that became a spec value. A later override of a key replaces the earlier one.
    """
    existing = tree.get("overrides", [])
    if not isinstance(existing, list):
        return {}  # validation reports it
    folded: dict[str, str] = {}
    kept = [text for text in existing if isinstance(text, str)]
    for text in texts:
        raw = parse_raw(text) if isinstance(text, str) else None
        where = f"{source} {raw.key}" if raw else source
        if refused := _refusal(text, raw, cls):
            value, rule, fix = refused
            problems.append(Problem(path="overrides", value=value, rule=rule, fix=fix, source=where))
            continue
        assert raw is not None
        path = SPEC_PATH_OF.get(raw.key, "")
        is_ours = path and raw.prefix != "~" and field_at(cls, path) is not None
        if not is_ours or raw.value is None:
            kept = [old for old in kept if (known := parse_raw(old)) is None or known.key != raw.key] + [text]
            continue
        folded[path] = where
        assign(tree, cls, path, raw.value, where, problems)
    if kept:
        tree["overrides"] = kept
    return folded


def _refusal(text: Any, raw: RawOverride | None, cls: type[Section]) -> tuple[Any, str, str] | None:
    """Return value, rule and fix of an override that cannot be used, or None."""
    if isinstance(text, str) and holds_secret(text):
        fix = "give it in the environment of the run, or by reference to a Kubernetes Secret"
        return REDACTED, "a secret is never written into an override", fix
    if raw is None:
        return text, "a raw override is Hydra's `key=value`, `+key=value`, `++key=value` or `~key`", "see `--help`"
    value, remove = unquote(raw.value or ""), "remove the override"
    shown = f"{raw.key}={value}"
    if value.startswith("{") and (hidden := next((k for k in _GUARDED if k.startswith(f"{raw.key}.")), "")):
        return shown, f"a map here could set {hidden} unseen by the spec's checks", "write one override for each key"
    if raw.prefix != "~" and (reason := refused_key(raw.key, value)):
        return shown, reason, remove
    path = SPEC_PATH_OF.get(raw.key, "")
    is_known = bool(path) and field_at(cls, path) is not None
    if raw.key.startswith(_OURS) and (not is_known or raw.prefix == "~"):
        near = nearest(raw.key, [name for name in SPEC_PATH_OF if name.startswith(_OURS) and name != raw.key])
        return text, "this kind has no such key", f"did you mean {near}?" if near else remove
    lacks = f"it has no {path}" if path and not is_known else ""
    if "grpo" not in cls.model_fields and _POLICY_LOSS.fullmatch(raw.key):
        lacks = "the policy loss of verl is kind grpo's"
    if lacks and value.lower() not in _NOTHING:
        return shown, f"this kind does not read it: {lacks}", remove
    return None
