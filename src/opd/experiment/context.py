"""The model's context against the longest row, which a rollout server would check only as it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opd.experiment.errors import Problem

if TYPE_CHECKING:
    from opd.experiment.kinds import AnyRunSpec, OpdAgentSpec, OpdSpec

_LENGTH = "max_position_embeddings"
# An override of one of them speaks to verl's server directly, which compares them itself.
_OWN_LENGTH = ("rollout.max_model_len", f"model.override_config.{_LENGTH}")


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest row that a Hugging Face config allows; None means that it does not say."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping) and isinstance(length := part.get(_LENGTH), int):
            return length
    return None


def local_context(path: str) -> int | None:
    """Return the context of a model in a local folder; None means that there is none."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return context_of(config) if isinstance(config, dict) else None


def context_problems(spec: AnyRunSpec, context: int | None) -> Iterator[Problem]:
    """Yield a problem for a row that is longer than the context (see `context_of`) of the model that answers."""
    prompt, row = spec.data.max_prompt_length, spec.row_length
    is_given = any(key in text for key in _OWN_LENGTH for text in spec.overrides)
    if context is None or row <= context or spec.kind == "sft" or is_given:
        return
    rule = (
        f"with data.max_prompt_length={prompt} a row has up to {row} tokens, and the server takes no more than "
        f"{context}, the model's {_LENGTH} (its rope_scaling does not count)"
    )
    most = f"at most {context - prompt}, a smaller" if context > prompt else f"below {context} with a smaller"
    fix = f"{most} data.max_prompt_length, or a model with a larger {_LENGTH} in its config.json"
    yield spec.broken("data.max_response_length", rule, fix)


def teacher_notes(spec: OpdSpec | OpdAgentSpec, contexts: Mapping[str, int | None]) -> Iterator[str]:
    """Yield a note for each teacher whose rows may be longer than its context, by its key; no server checks these."""
    for key, teacher in spec.named_teachers.items():
        of_prompt = "data" if teacher.max_prompt_length is None else key
        row = (teacher.max_prompt_length or spec.data.max_prompt_length) + spec.data.max_response_length
        if (context := contexts[key]) is not None and row > context:
            yield (
                f"{key}.path: rows may have {row} tokens ({of_prompt}.max_prompt_length + data.max_response_length), and "
                f"its {_LENGTH} is {context}: beyond it the teacher has not learned what it says"
            )
