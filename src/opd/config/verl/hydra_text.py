"""Writes a value so that Hydra's override grammar reads back exactly that value."""

from __future__ import annotations

import math
import re
from typing import Any

# A word that needs no quotes: it cannot start a number, hold Hydra's punctuation or open an interpolation.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED = {"null", "true", "false", "nan", "inf"}


def hydra_value(value: Any) -> str:
    """`value` (bool, int, finite float, str, list or tuple of them, None) as the right-hand side of an override.

    Raises:
        ValueError: for a number that is not finite.
        TypeError: for any other type; maps are written as one override a leaf.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"override value {value}: must be finite")
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    raise TypeError(f"override value {value!r}: no type that an override can hold")


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    # Inside quotes Hydra unescapes only backslashes that precede a quote (or end the text), OmegaConf only those before
    # `${`: double exactly these.
    escaped = re.sub(r"(\\*)\$\{", lambda m: m.group(1) * 2 + "\\${", value)
    escaped = re.sub(r"(\\*)'", lambda m: m.group(1) * 2 + "\\'", escaped)
    escaped = re.sub(r"(\\+)\Z", lambda m: m.group(1) * 2, escaped)
    return f"'{escaped}'"
