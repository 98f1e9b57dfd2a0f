"""Keys of verl that cannot work here, each with its reason, and secrets that a spec must not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from opd import redaction
from opd.experiment.errors import Problem
from opd.redaction import REDACTED, is_secret_name, is_secret_value

_LORA = (
    "LoRA students are asked for by model.lora, with rank, alpha and target_modules: by verl's own keys checkpoints "
    "could not be merged, nor weights be served"
)
_MEGATRON = "only the fsdp2 engine is supported: the teacher cannot follow how Megatron shards heads and checkpoints"
_NATIVE = "verl's own distillation uses top-k or sampled tokens only; kind opd distils the full distributions"
_LOSSES = "vanilla gpg cispo dro dppo_tv dppo_kl gspo sapo"
_MICRO_BATCH = f"the loss needs statistics of a micro-batch, which depend on how rows are cut; the update has {_LOSSES}"
_ESTIMATORS = (
    "grpo grpo_vectorized grpo_passk rloo rloo_vectorized opo gpg reinforce_plus_plus reinforce_plus_plus_baseline"
)
_CRITIC = f"the update has no critic and no greedy baseline; it has the estimators {_ESTIMATORS}"
_UNREAD = (
    "nothing reads this key of verl: reward.function scores, grpo.kl_loss_coef weighs the KL to the start model, there "
    "is no critic and no correction of rollouts"
)
_OFF = "null none false 0"

# (pattern of a dotted key, values that are harmless, reason); the fix is always to remove the key
_REFUSED: tuple[tuple[str, str, str], ...] = (
    (r"(^|\.)(lora|lora_\w+|target_parameters|save_lora_only)(\.|$)", _OFF, _LORA),
    (r"(^|\.)(strategy|model_engine)$|(^|\.)megatron(\.|$)", "fsdp2 dp", _MEGATRON),
    (r"^distillation\.enabled$", _OFF, _NATIVE),
    (r"(^|\.)policy_loss\.loss_mode$", _LOSSES, _MICRO_BATCH),
    (r"(^|\.)adv_estimator$", _ESTIMATORS, _CRITIC),
    (r"(^|\.)(rollout_correction\.\w+|reward_model\.enable|use_kl_in_reward|actor\.use_kl_loss)$", _OFF, _UNREAD),
    (r"\bactor\.(use_prefix_grouper|calculate_sum_pi_squared|freeze_vision_tower|use_fused_kernels)$", _OFF, _UNREAD),
    (r"(^|\.)actor\.(qat|router_replay)\.|^critic\.", _OFF, _UNREAD),
)
_CONTENTS = re.compile(r"(^|\.)actor\.checkpoint\.(save|load)_contents$")
_UNRESUMABLE = "no run could resume from a checkpoint with less than model, optimizer and extra, and none is sealed"

_SECRET_RULE = "a secret is never written into a spec: it would end in ConfigMaps, logs and the store"
SECRET_FIX = "give it in the environment, or by reference to an existing Kubernetes Secret (cluster.envFrom)"


def refused_key(path: str, value: object) -> str:
    """Return why a key, in the spec's or verl's spelling, asks for something that cannot work here; else ''."""
    text = str(value).lower()
    for pattern, harmless, reason in _REFUSED:
        if re.search(pattern, path):
            return "" if text in harmless.split() else reason
    needs_more = _CONTENTS.search(path) and not {"model", "optimizer", "extra"}.issubset(re.findall(r"\w+", text))
    return _UNRESUMABLE if needs_more else ""


def secrets(tree: Any, path: str = "") -> Iterator[Problem]:
    """Yield a problem for every literal secret in the tree, by the rule of `opd.redaction`."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            child = f"{path}.{key}".lstrip(".")
            if isinstance(tree, dict) and _is_secret(tree, str(key), is_env=path == "env"):
                yield Problem(path=child, value=REDACTED, rule=_SECRET_RULE, fix=SECRET_FIX)
            else:
                yield from secrets(value, child)
    elif isinstance(tree, str) and is_secret_value(tree):
        fix = "remove user and password from the URL" if "://" in tree else SECRET_FIX
        yield Problem(path=path, value=REDACTED, rule=_SECRET_RULE, fix=fix)


def redact(value: Any) -> Any:
    """Return `value` with literal secrets replaced."""
    if isinstance(value, dict):
        return {key: REDACTED if _is_secret(value, key) else redact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return REDACTED if isinstance(value, str) and is_secret_value(value) else value


def _is_secret(mapping: dict[str, Any], key: str, *, is_env: bool = False) -> bool:
    """Return True if a key holds a literal secret: by its own name, or as the `value` next to such a `name`.

    Only variables have names of secrets: a spec's own key, such as `data.prompt_key`, is in small letters.
    """
    name = mapping.get("name")
    names = [key, *([name] if key == "value" and isinstance(name, str) else [])]
    is_named = any((is_env or text == text.upper()) and is_secret_name(text) for text in names)
    return is_named and not isinstance(mapping[key], dict | list)


def holds_secret(text: str) -> bool:
    """Return True if a text such as a raw override sets a variable that names a secret, or has a secret's shape."""
    return redaction.without(text) != text or is_secret_value(text)
