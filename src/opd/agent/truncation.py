"""Shortening a tool's reply to a number of tokens, on a token boundary, with a mark that says so."""

from typing import Any

TRUNCATION_MARK = " …[truncated]"
_MAX_CHARS_PER_TOKEN = 256
"""No vocabulary has a longer token: text beyond this bound is dropped before it is tokenised."""


def truncate_reply(text: str, *, tokenizer: Any, max_tokens: int) -> tuple[str, bool]:
    """The text, or its longest beginning that with the mark has at most `max_tokens` tokens.

    The cut lies between two tokens of the text as it is tokenised by itself and between two characters; what is
    returned, tokenised again by itself, has at most `max_tokens` tokens.

    Args:
        text: the reply.
        tokenizer: of transformers, a fast one (it tells which characters a token stands for).
        max_tokens: the limit, mark included.

    Returns:
        The text and whether it was shortened.

    Raises:
        ValueError: a limit too small for the mark, or a tokenizer that is not a fast one.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer = {type(tokenizer).__name__}: must be a fast one; it tells where a token ends")
    mark_tokens = len(_encode(tokenizer, TRUNCATION_MARK)["input_ids"])
    if max_tokens <= mark_tokens:
        raise ValueError(
            f"max_tokens = {max_tokens}: must be more than {mark_tokens}, the tokens of the mark {TRUNCATION_MARK!r}; "
            "raise agent.max_tool_response_length"
        )
    bounded = text[: _MAX_CHARS_PER_TOKEN * (max_tokens + 1)]
    encoded = _encode(tokenizer, bounded, offsets=True)
    if len(encoded["input_ids"]) <= max_tokens and len(bounded) == len(text):
        return text, False
    offsets = encoded["offset_mapping"]
    for num_kept in range(min(max_tokens - mark_tokens, len(offsets) - 1), -1, -1):
        end = offsets[num_kept - 1][1] if num_kept else 0
        if offsets[num_kept][0] < end:  # the next token is another part of the same character
            continue
        shortened = bounded[:end] + TRUNCATION_MARK
        if len(_encode(tokenizer, shortened)["input_ids"]) <= max_tokens:  # the seam may tokenise differently
            return shortened, True
    raise ValueError(f"max_tokens = {max_tokens}: the mark alone does not fit; raise agent.max_tool_response_length")


def _encode(tokenizer: Any, text: str, *, offsets: bool = False) -> Any:
    return tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets)
