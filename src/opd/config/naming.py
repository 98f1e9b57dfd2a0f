"""Names of runs: what a run is called where nobody named it, and how a long name is shortened.

A name is DNS-1035 and has at most 47 characters (`opd.config.base` says why).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from opd.config.base import MAX_NAME_CHARS

NUM_HASH_CHARS = 6


def slug(text: str) -> str:
    """Lower-case letters, digits and single dashes: `3e-06` and `1.5` become `3e-06` and `1-5`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def joined(parts: Sequence[str], *, distinct: str = "") -> str:
    """One name of several texts: the same for the same texts, another one for others.

    A name that would be too long, or that loses letters other than English ones, ends in a hash.

    Args:
        distinct: what the hash is made of; the texts by default.
    """
    name = "-".join(filter(None, map(slug, parts)))
    if len(name) <= MAX_NAME_CHARS and all(part.isascii() for part in parts):
        return name
    digest = hashlib.sha256((distinct or "\0".join(parts)).encode()).hexdigest()[:NUM_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - NUM_HASH_CHARS - 1].rstrip('-')}-{digest}"
