"""Text from outside a file: values for a key's type, verl's names of keys, and raw Hydra overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_origin

from pydantic.fields import FieldInfo

from opd.config.algorithm import Opd
from opd.config.base import Section
from opd.config.errors import REDACTED, Problem, SpecError, nearest
from opd.config.reader import read_scalar, read_text
from opd.config.refusals import REFUSED_VERL_KEYS, holds_secret, refused_key
from opd.config.sections import Split
from opd.config.tree import drop_path, field_at, leaf_paths, set_path, strip_optional

_ACTOR, _MODEL, _REF, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "ref", "rollout"))
_OPTIM, _FSDP, _VAL = f"{_ACTOR}.optim", f"{_ACTOR}.fsdp_config", f"{_ROLLOUT}.val_kwargs"

# (verl's key, the spec's path) of keys that carry one another unchanged; the first row of a path is written.
VERL_KEYS: tuple[tuple[str, str], ...] = (
    ("data.train_files", "data.train"),
    ("data.val_files", "data.val"),
    ("data.train_batch_size", "data.train_batch_size"),
    ("data.max_prompt_length", "data.max_prompt_length"),
    ("data.max_response_length", "data.max_response_length"),
    ("data.filter_overlong_prompts", "data.filter_overlong"),
    ("data.truncation", "data.truncation"),
    ("data.shuffle", "data.shuffle"),
    ("data.dataloader_num_workers", "data.num_workers"),
    ("data.train_max_samples", "data.max_train_samples"),
    ("data.val_max_samples", "data.max_val_samples"),
    (f"{_MODEL}.path", "model.path"),
    (f"{_MODEL}.trust_remote_code", "model.trust_remote_code"),
    (f"{_MODEL}.use_remove_padding", "actor.use_remove_padding"),
    (f"{_MODEL}.enable_gradient_checkpointing", "actor.gradient_checkpointing"),
    (f"{_OPTIM}.lr", "actor.learning_rate"),
    (f"{_OPTIM}.lr_scheduler_type", "actor.lr_schedule"),
    (f"{_OPTIM}.min_lr_ratio", "actor.min_lr_ratio"),
    (f"{_OPTIM}.lr_warmup_steps", "actor.num_warmup_steps"),
    (f"{_OPTIM}.weight_decay", "actor.weight_decay"),
    (f"{_OPTIM}.betas", "actor.betas"),
    (f"{_OPTIM}.clip_grad", "actor.grad_clip"),
    (f"{_ACTOR}.grad_clip", "actor.grad_clip"),
    (f"{_ACTOR}.ppo_epochs", "actor.ppo_epochs"),
    (f"{_ACTOR}.ppo_mini_batch_size", "actor.ppo_mini_batch_size"),
    (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "actor.ppo_micro_batch_size_per_gpu"),
    (f"{_ACTOR}.use_dynamic_bsz", "actor.use_dynamic_bsz"),
    (f"{_ACTOR}.ppo_max_token_len_per_gpu", "actor.ppo_max_token_len_per_gpu"),
    (f"{_ACTOR}.ulysses_sequence_parallel_size", "actor.ulysses_sequence_parallel_size"),
    (f"{_ACTOR}.use_torch_compile", "actor.torch_compile"),
    (f"{_FSDP}.use_torch_compile", "actor.torch_compile"),
    (f"{_FSDP}.param_offload", "actor.param_offload"),
    (f"{_FSDP}.optimizer_offload", "actor.optimizer_offload"),
    (f"{_ACTOR}.clip_ratio_low", "grpo.clip_ratio_low"),
    (f"{_ACTOR}.clip_ratio_high", "grpo.clip_ratio_high"),
    (f"{_ACTOR}.clip_ratio_c", "grpo.clip_ratio_c"),
    (f"{_ACTOR}.kl_loss_coef", "grpo.kl_loss_coef"),
    (f"{_ACTOR}.kl_loss_type", "grpo.kl_loss_type"),
    (f"{_ACTOR}.entropy_coeff", "grpo.entropy_coeff"),
    (f"{_ACTOR}.loss_agg_mode", "grpo.loss_agg_mode"),
    ("algorithm.norm_adv_by_std_in_grpo", "grpo.norm_adv_by_std"),
    (f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", "actor.log_prob_micro_batch_size_per_gpu"),
    (f"{_REF}.log_prob_micro_batch_size_per_gpu", "actor.log_prob_micro_batch_size_per_gpu"),
    (f"{_ROLLOUT}.log_prob_max_token_len_per_gpu", "actor.log_prob_max_token_len_per_gpu"),
    (f"{_REF}.log_prob_max_token_len_per_gpu", "actor.log_prob_max_token_len_per_gpu"),
    (f"{_ROLLOUT}.n", "rollout.num_samples"),
    (f"{_ROLLOUT}.temperature", "rollout.temperature"),
    (f"{_ROLLOUT}.top_p", "rollout.top_p"),
    (f"{_ROLLOUT}.top_k", "rollout.top_k"),
    (f"{_VAL}.n", "rollout.val.num_samples"),
    (f"{_VAL}.temperature", "rollout.val.temperature"),
    (f"{_VAL}.top_p", "rollout.val.top_p"),
    (f"{_VAL}.top_k", "rollout.val.top_k"),
    (f"{_ROLLOUT}.tensor_model_parallel_size", "rollout.tensor_parallel_size"),
    (f"{_ROLLOUT}.gpu_memory_utilization", "rollout.gpu_memory_utilization"),
    (f"{_ROLLOUT}.free_cache_engine", "rollout.free_cache_engine"),
    (f"{_ROLLOUT}.enforce_eager", "rollout.enforce_eager"),
    (f"{_ROLLOUT}.max_num_seqs", "rollout.max_num_seqs"),
    (f"{_ROLLOUT}.max_num_batched_tokens", "rollout.max_num_batched_tokens"),
    (f"{_ROLLOUT}.agent.num_workers", "rollout.num_agent_workers"),
    (f"{_ROLLOUT}.multi_turn.max_assistant_turns", "agent.max_assistant_turns"),
    (f"{_ROLLOUT}.multi_turn.max_tool_response_length", "agent.max_tool_response_length"),
    (f"{_ROLLOUT}.multi_turn.max_parallel_calls", "agent.max_parallel_calls"),
    (f"{_ROLLOUT}.multi_turn.format", "agent.tool_format"),
    ("reward.num_workers", "reward.num_workers"),
    ("trainer.nnodes", "trainer.nnodes"),
    ("trainer.n_gpus_per_node", "trainer.gpus_per_node"),
    ("trainer.device", "device"),
    ("trainer.logger", "trainer.loggers"),
    ("trainer.project_name", "trainer.project"),
    ("trainer.total_epochs", "trainer.total_epochs"),
    ("trainer.total_training_steps", "trainer.total_steps"),
    ("trainer.save_freq", "trainer.save_freq"),
    ("trainer.test_freq", "trainer.test_freq"),
    ("trainer.val_before_train", "trainer.val_before_train"),
)
# Keys that are understood but never written: ours as people type them among verl's, the original's name for the teacher.
ALSO_READ: dict[str, str] = {
    **{f"opd.{path}": f"opd.{path}" for path, _ in leaf_paths(Opd)},
    **{f"opd.teacher.{name}": f"teacher.{name}" for name in ("path", "trust_remote_code", "dtype", "offload")},
    "actor_rollout_ref.ref.model.path": "teacher.path",
    "data.seed": "seed",
    **{f"data.split.{path}": f"data.split.{path}" for path, _ in leaf_paths(Split)},
}
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
RULE = "a raw override is Hydra's `key=value`, `+key=value`, `++key=value` or `~key`"


@dataclass(frozen=True)
class RawOverride:
    """A parsed raw override; `value` is None for `~key`."""

    prefix: str
    key: str
    value: str | None


def parse_raw(text: str) -> RawOverride | None:
    """Return the parts of a raw override, or None if it is none."""
    match = _OVERRIDE.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        return None
    return RawOverride(match["prefix"], match["key"], match["value"])


def parse_value(text: str, field: FieldInfo, path: str, source: str, problems: list[Problem]) -> Any:
    """Return the value that `text` means for `field`; append a Problem and return None where it means none."""

    def refuse(rule: str, fix: str) -> None:
        problems.append(Problem(path=path, value=text, rule=rule, fix=fix, source=source))

    kind = strip_optional(field.annotation)
    if kind is str or get_origin(kind) is Literal:
        return unquote(text)
    if kind is bool:
        truth = _TRUTHS.get(text.strip().lower())
        return refuse("a truth value is needed", "use true or false") if truth is None else truth
    if kind in (int, float):
        found: list[Problem] = []
        value = read_scalar(text.strip(), path, found, source)
        if found or isinstance(value, bool | str):
            return refuse(f"{'a whole number' if kind is int else 'a number'} is needed", "write a plain decimal")
        return value
    if get_origin(kind) is tuple and (braced := _BRACED.fullmatch(text.strip())):
        return refuse("a list is written in [ ]", f"[{', '.join(part.strip() for part in braced[1].split(','))}]")
    try:  # lists and maps in YAML's flow style; a bare word stays a text
        return read_text(f"value: {text}", origin=path).tree["value"]
    except SpecError as error:
        for problem in error.problems:
            refuse(problem.rule, problem.fix or "quote the value")
        return None


def unquote(text: str) -> str:
    """Return the text without one pair of surrounding quotes."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def fold(
    tree: dict[str, Any], cls: type[Section], texts: Iterable[Any], source: str, problems: list[Problem]
) -> list[tuple[str, str]]:
    """Apply raw overrides to the tree in order: keys the spec has become spec values, others join `overrides`.

    Returns the (spec path, source) of each that became a spec value. A later raw override of the same key replaces the
    earlier one.
    """
    existing = tree.get("overrides", [])
    if not isinstance(existing, list):
        return []  # validation reports it
    folded: list[tuple[str, str]] = []
    kept = [text for text in existing if isinstance(text, str)]
    for text in texts:
        raw = parse_raw(text) if isinstance(text, str) else None
        if problem := _refusal(text, raw, cls, source):
            problems.append(problem)
            continue
        assert raw is not None
        where, path = f"{source} {raw.key}".strip(), SPEC_PATH_OF.get(raw.key, "")
        field = field_at(cls, path) if path and raw.prefix != "~" else None
        if field is None or raw.value is None:
            kept = [old for old in kept if (known := parse_raw(old)) is None or known.key != raw.key] + [text]
            continue
        folded.append((path, where))
        if raw.value == "null":
            drop_path(tree, path)
        elif (value := parse_value(raw.value, field, path, where, problems)) is not None:
            set_path(tree, path, value)
    if kept:
        tree["overrides"] = kept
    return folded


def _refusal(text: Any, raw: RawOverride | None, cls: type[Section], source: str) -> Problem | None:
    """Return the reason why an override cannot be used, or None."""

    def refuse(value: object, rule: str, fix: str) -> Problem:
        where = f"{source} {raw.key}".strip() if raw else source
        return Problem(path="overrides", value=value, rule=rule, fix=fix, source=where)

    if isinstance(text, str) and holds_secret(text):
        fix = "give it in the environment of the run, or by reference to a Kubernetes Secret"
        return refuse(REDACTED, "a secret is never written into an override", fix)
    if raw is None:
        return refuse(text, RULE, "see `--help`")
    value = unquote(raw.value or "")
    shown = f"{raw.key}={value}"
    if value.startswith("{") and (hidden := next((k for k in _GUARDED if k.startswith(f"{raw.key}.")), "")):
        rule = f"a map here could set {hidden} unseen by the spec's checks"
        return refuse(shown, rule, "write one override for each key")
    if raw.prefix != "~" and (reason := refused_key(raw.key, value)):
        return refuse(shown, reason, "remove the override")
    path = SPEC_PATH_OF.get(raw.key, "")
    if raw.key.startswith(_OURS) and (not path or field_at(cls, path) is None or raw.prefix == "~"):
        near = nearest(raw.key, [name for name in SPEC_PATH_OF if name.startswith(_OURS) and name != raw.key])
        return refuse(text, "this kind has no such key", f"did you mean {near}?" if near else "remove the override")
    lacks = f"it has no {path}" if path and field_at(cls, path) is None else ""
    if "grpo" not in cls.model_fields and _POLICY_LOSS.fullmatch(raw.key):
        lacks = "the policy loss of verl is kind grpo's"
    if lacks and value.lower() not in _NOTHING:
        return refuse(shown, f"this kind does not read it: {lacks}", "remove the override")
    return None
