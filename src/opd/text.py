"""Text that a model, a tool or another run wrote, made safe for UTF-8, a terminal and a page."""

import base64
import codecs
import hashlib
import re
from collections.abc import Sequence


def policy(scripts: Sequence[str] = ()) -> str:
    """Return the Content-Security-Policy of a page with these inline scripts: each by its hash, nothing from any network."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"]
    rules += [f"script-src {allowed}"] if scripts else []
    return "; ".join(rules)


# Python loads a codec's module at its first use; a tool's process, which must open nothing once it answers, has it by then.
_UTF_16 = codecs.lookup("utf-16-le").name
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# C0, DEL and C1 (a terminal obeys U+009B as it does ESC [), line separators, and what reverses the order of what follows.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def storable(text: str) -> str:
    r"""Return the text with every lone surrogate replaced by U+FFFD, so that it can be encoded.

    JSON's `"\ud800"` is plain ASCII and yet becomes half a character in Python, which UTF-8, tokenizers and Arrow reject.
    """
    return text.encode(_UTF_16, "surrogatepass").decode(_UTF_16, "replace")


def shortened(text: str, max_chars: int) -> str:
    """Return the text, or its beginning and its end with the number of characters between them."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def inert(text: str, *, keep: str = "\n\t") -> str:
    r"""Return the text for a terminal: storable, without colours, control characters not in `keep` written as `\x1b`."""

    def written(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode()

    return _CONTROL.sub(written, _COLOURS.sub("", storable(text)))
