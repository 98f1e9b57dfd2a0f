"""Tokens that end a model's turn, by its tokenizer, generation config and chat template: the one place that decides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from opd.data.chat_template import UnfitTemplate, render

_SAID = "opd-said"
_TALK = ({"role": "user", "content": "opd-asked"}, {"role": "assistant", "content": _SAID})


def end_tokens(tokenizer: Any, generation_config: Any = None, **template: Any) -> tuple[int, ...]:
    """Return the tokens that end a turn, ascending.

    Args:
        tokenizer: with its chat template, if it has one.
        generation_config: of the model; None means the config of the tokenizer's folder or hub id.
        template: arguments of the template.
    """
    written = written_end(tokenizer, **template)
    return tuple(sorted(named_ends(tokenizer, generation_config) | ({written} if written is not None else set())))


def named_ends(tokenizer: Any, generation_config: Any = None) -> set[int]:
    """Return the ends that tokenizer and generation config name, at which every engine stops by itself."""
    given = (
        _configured(getattr(tokenizer, "name_or_path", ""))
        if generation_config is None
        else generation_config.eos_token_id
    )
    return {tokenizer.eos_token_id, *(given if isinstance(given, Sequence) else (given,))} - {None}


def written_end(tokenizer: Any, **template: Any) -> int | None:
    """Return the token that the chat template writes after what the model said; None where it writes none."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    try:
        text = render(tokenizer, _TALK, is_finished=True, **template)
    except UnfitTemplate:
        return None
    after = text.rpartition(_SAID)[2].lstrip()
    found = (
        token
        for token, added in tokenizer.added_tokens_decoder.items()
        if added.content and after.startswith(added.content)
    )
    return max(found, key=lambda token: len(tokenizer.added_tokens_decoder[token].content), default=None)


def last_end(tokenizer: Any, **template: Any) -> int:
    """Return the token that closes an answer which lacks its end: the template's, else the tokenizer's."""
    written = written_end(tokenizer, **template)
    return int(tokenizer.eos_token_id if written is None else written)


def up_to_end(text: str, ends: Iterable[str]) -> str:
    """Return a turn up to its last end, without what the template writes after it; whole where it has none."""
    last = max((text.rfind(end) + len(end) for end in ends if end and end in text), default=len(text))
    return text[:last]


@cache  # each conversation asks, and a hub id takes a request
def _configured(path: str) -> Any:
    """Return the ends in the generation config of a folder or a hub id; None where there is no such config."""
    from transformers import GenerationConfig

    with suppress(OSError, ValueError, TypeError):
        return GenerationConfig.from_pretrained(path).eos_token_id if path else None
    return None
