"""Problems of single fields, from pydantic's errors: what is allowed in words, and the text to write instead."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from opd.experiment.base import MAX_NAME_CHARS, PATTERN_WORDS, Section, joined
from opd.experiment.errors import Problem, nearest, show
from opd.experiment.reader import TRUTH_11
from opd.experiment.tree import field_at, leaf_paths, names_of, section_of, strip_optional

_LORA = "ask for a LoRA student by model.lora: by verl's keys checkpoints could not be merged, nor weights served"
_MEGATRON = "only the fsdp2 engine is supported: the teacher cannot follow how Megatron shards heads and checkpoints"
_NATIVE = "verl's own distillation uses top-k or sampled tokens only; kind opd distils the full distributions"
_LOSSES = "vanilla gpg cispo dro dppo_tv dppo_kl gspo sapo"
_MICRO_BATCH = f"the loss needs statistics of a micro-batch, which depend on how rows are cut; the update has {_LOSSES}"
_GROUPED = "grpo grpo_vectorized grpo_passk rloo rloo_vectorized opo gpg"
_ESTIMATORS = f"{_GROUPED} reinforce_plus_plus reinforce_plus_plus_baseline"
_CRITIC = f"the update has no critic and no greedy baseline; it has the estimators {_ESTIMATORS}"
_UNREAD = "nothing reads this key of verl: there is no critic; reward.function scores, grpo.kl_loss_coef weighs the KL"
_FILES = "a run reads no `matrix` (`opdctl submit` starts a run for each cell) and no --set cluster.KEY=VALUE"
_CONTENTS = re.compile(r"(^|\.)actor\.checkpoint\.(save|load)_contents$")
_UNRESUMABLE = "no run could resume from a checkpoint with less than model, optimizer and extra, and none is sealed"
_SHARED = "student and teacher share sequences alike, by actor.ulysses_sequence_parallel_size"
_OFF = "null none false 0"
# (pattern of a dotted key, values that are harmless, reason); the fix is to remove the key
_REFUSED: tuple[tuple[str, str, str], ...] = (
    (r"(^|\.)(lora|lora_\w+|target_parameters|save_lora_only)(\.|$)", _OFF, _LORA),
    (r"(^|\.)(strategy|model_engine)$|(^|\.)megatron(\.|$)", "fsdp2 dp", _MEGATRON),
    (r"^distillation\.enabled$", _OFF, _NATIVE),
    (r"(^|\.)ref\.(\w+\.)?ulysses_sequence_parallel_size$", "", _SHARED),
    (r"(^|\.)policy_loss\.loss_mode$", _LOSSES, _MICRO_BATCH),
    (r"(^|\.)adv_estimator$", _ESTIMATORS, _CRITIC),
    (r"(^|\.)(rollout_correction\.\w+|reward_model\.enable|use_kl_in_reward|actor\.use_kl_loss)$", _OFF, _UNREAD),
    (r"\bactor\.(use_prefix_grouper|calculate_sum_pi_squared|freeze_vision_tower|use_fused_kernels)$", _OFF, _UNREAD),
    (r"(^|\.)actor\.(qat|router_replay)\.|^critic\.", _OFF, _UNREAD),
    (r"^(cluster|matrix)(\.|$)", "", _FILES),
)
_NAME = f"a name by DNS-1035: lower-case letters, digits and `-`, a letter first, at most {MAX_NAME_CHARS} of them"
# Names that people bring from other trainers, and what they are called here; `nearest` finds most of verl's.
ALIASES = {"n": "num_samples", "lr": "learning_rate", "gpus": "gpus_per_node", "gpu": "cuda", "epochs": "total_epochs"}
ALIASES |= {"val_kwargs": "val", "train_files": "train", "val_files": "val"}
# What pydantic's types of errors ask for.
_ASKED = {
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a map, {{KEY: VALUE}}",
    "tuple_type": "a list, [ITEM, ITEM]",
    "too_short": "a list of at least {min_length}",
    "string_too_long": "a text of at most {max_length} characters",
    "literal_error": "{expected}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "greater_than_equal": "a number >= {ge:.15g}",
    "greater_than": "a number > {gt:.15g}",
    "less_than_equal": "a number <= {le:.15g}",
    "less_than": "a number < {lt:.15g}",
}
_PLAIN = {"bool_type": "true|false", "int_type": "-?[0-9]+", "float_type": r"-?[0-9.]+(e-?[0-9]+)?"}


def refused_key(path: str, value: object) -> str:
    """Return why a key, in the spec's or verl's spelling, asks for something that cannot work here; else ''."""
    text = str(value).lower()
    for pattern, harmless, reason in _REFUSED:
        if re.search(pattern, path):
            return "" if text in harmless.split() else reason
    lacks = {"model", "optimizer", "extra"} - {*re.findall(r"\w+", text)}
    return _UNRESUMABLE if lacks and _CONTENTS.search(path) else ""


def field_problems(
    error: ValidationError, tree: Any, cls: type[Section], *, above: str = "", computed: Iterable[str] = ()
) -> list[Problem]:
    """Return pydantic's errors of a section, which may have a path `above` it, in our words.

    A missing key of `computed` follows from keys that are wrong or missing: it counts only if nothing else is wrong.
    """
    out, follow_ups = list[Problem](), list[Problem]()
    found = _by_path(error, tree)
    for path, items in found.items():
        kind = items[0]["type"]
        if kind == "too_short" and any(other.startswith(f"{path}.") for other in found):
            continue  # pydantic counts a list's valid items; the invalid ones have problems of their own
        if kind == "extra_forbidden":
            out.append(unknown_key(path, items[0]["input"], cls, above=above))
            continue
        follows = kind == "missing" and any(f"{name}.".startswith(f"{path}.") for name in computed)
        (follow_ups if follows else out).append(_problem(path, items, field_at(cls, path), above))
    return out or follow_ups


def unknown_key(path: str, value: object, cls: type[Section], *, above: str = "") -> Problem:
    """Return a problem for a key that does not exist, with the nearest one; a section takes no value either."""
    parent, _, name = path.rpartition(".")
    if inner := section_of(field_at(cls, path)):
        return Problem(path=path, value=value, rule="it is a section of keys, not a key", fix=_one_by_one(path, inner))
    if reason := refused_key(path, value):
        return Problem(path=path, value=value, rule=reason, fix="remove the key")
    names = list(names_of((section_of(field_at(cls, parent)) if parent else None) or cls))
    alias = ALIASES.get(name, "")
    elsewhere = [p for p, _ in leaf_paths(cls) if p.rpartition(".")[2] in {name, alias}]
    near = alias if alias in names else nearest(name, names)
    near = ".".join(filter(None, (above, parent, near))) if near else ""
    near = " or ".join(elsewhere[:3]) if elsewhere and alias not in names else near
    kind = cls.model_fields.get("kind")
    rule = f"there is no such key in kind {get_args(kind.annotation)[0]}" if kind else "there is no such key"
    fix = f"did you mean {near}?" if near else f"keys here: {', '.join(names)}"
    return Problem(path=path, value=value, rule=rule, fix=fix)


def _by_path(error: ValidationError, tree: Any) -> dict[str, list[Any]]:
    """Return pydantic's errors by the dotted paths of their keys, the branches of a union together."""
    found: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False, include_context=True):
        node, parts = tree, []
        for depth, part in enumerate(item["loc"], start=1):
            if part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node)):
                node = node[part]
            elif item["type"] != "missing" or depth < len(item["loc"]):
                continue
            parts.append(str(part))
        found.setdefault(".".join(parts), []).append(item)
    return found


def _problem(path: str, items: Sequence[Any], field: FieldInfo | None, above: str) -> Problem:
    """Return one problem of a field, from pydantic's error or from one of each branch of a union."""
    about = (field.description if field is not None else None) or ""
    full = f"{above}.{path}" if above else path
    if items[0]["type"] == "missing":
        return Problem(path=path, rule="the key is required", fix=f"set {full}", about=about)
    value, asked = items[0]["input"], [words for item in items if (words := _asked(path, item))]
    messages = [str(item["msg"]).removeprefix("Value error, ") for item in items]
    rule = f"input should be {' or '.join(asked)}" if asked else messages[0][:1].lower() + messages[0][1:]
    fix = next(filter(None, (_made_of(full, value, item, field) for item in items)), "")
    fix = fix or (f"write {', or '.join(asked)}" if asked else "")
    return Problem(path=path, value=value, rule=rule, fix=fix, about=about)


def _asked(path: str, item: Any) -> str:
    context = item.get("ctx", {})
    if path == "name" and item["type"].startswith("string_"):
        return _NAME
    if item["type"] == "string_pattern_mismatch":
        return PATTERN_WORDS.get(context["pattern"], "a text of another form")
    return _ASKED.get(item["type"], "").format_map(context)


def _made_of(path: str, value: Any, item: Any, field: FieldInfo | None) -> str:
    """Return a fix that is made of the value itself; empty where there is none."""
    kind, context, name = item["type"], item.get("ctx", {}), path.rpartition(".")[2]
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'quote it: "{show(value)}"'
    if kind.endswith("model_type") and (section := section_of(field)):
        first, inner = next(iter(names_of(section).items()))
        is_text = isinstance(value, str) and strip_optional(inner.annotation) is str
        return f"write `{name}: {{{first}: {value}}}`" if is_text else _one_by_one(path, section)
    if value == "":
        return "write a value, or leave the key out"
    if not isinstance(value, str):
        return ""
    if kind == "tuple_type":
        return f"write `{name}: [{', '.join(part.strip() for part in value.split(','))}]`"
    if kind in ("literal_error", "string_pattern_mismatch"):
        near = _near(value, context, field)
        like = (field.examples or [field.default])[0] if field is not None and kind != "literal_error" else None
        return f"did you mean {near}?" if near else f"write one like {show(like)}" if isinstance(like, str) else ""
    word = TRUTH_11.get(value.lower(), value.lower())
    return f"write {word}, without quotes" if kind in _PLAIN and re.fullmatch(_PLAIN[kind], word) else ""


def _near(text: str, context: Any, field: FieldInfo | None) -> str:
    """Return what a text was probably meant to be: one of the allowed names, or a name, quantity, URL or path."""
    pattern = context.get("pattern")
    names = re.findall("'([^']+)'", context.get("expected") or PATTERN_WORDS.get(pattern, ""))
    if names or pattern is None:
        return nearest(ALIASES.get(text.lower(), text), names)
    bare, name = text.strip("/ "), joined([text])
    tries = [text.removesuffix("B"), f"http://{bare}", f"/{bare}"]
    if field is None or not field.examples:
        tries += [name, f"run-{name}", name.replace("-", "_")]
    return next((one for one in tries if re.search(pattern, one)), "")


def _one_by_one(path: str, section: type[Section]) -> str:
    return f"set its keys one by one: {', '.join(f'{path}.{name}' for name in names_of(section))}"
