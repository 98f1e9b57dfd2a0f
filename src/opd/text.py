"""Text that a model, a tool or another run wrote, made safe to store as UTF-8 and to print on a terminal."""

from __future__ import annotations


def storable(text: str) -> str:
    r"""The text with every lone surrogate replaced by U+FFFD, so that it can be encoded.

    JSON's `"\ud800"` is plain ASCII and yet becomes half a character in Python: UTF-8, tokenizers and Arrow refuse it.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
