"""The model's context against the longest row, which a rollout server would check only as it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opd.experiment.errors import Problem

if TYPE_CHECKING:
    from opd.experiment.kinds import AnyRunSpec

_LENGTH = "max_position_embeddings"


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest row that a Hugging Face config allows; None means that it does not say."""
    found = [part.get(_LENGTH) for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    return next((length for length in found if isinstance(length, int)), None)


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
    if context is None or row <= context or spec.kind == "sft":
        return
    rule = (
        f"with data.max_prompt_length={prompt} a row has up to {row} tokens, and the server takes no more than "
        f"{context}, the model's {_LENGTH} (its rope_scaling does not count)"
    )
    most = f"at most {context - prompt}, a smaller" if context > prompt else f"below {context} with a smaller"
    fix = f"{most} data.max_prompt_length, or a model with a larger {_LENGTH} in its config.json"
    yield spec.broken("data.max_response_length", rule, fix)
