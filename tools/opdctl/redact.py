"""Owns the one rule of what is never printed: secret values of the environment, of URLs, and of assignments in texts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"
# Shorter values ("1", "none") would take innocent text with them.
MIN_SECRET_CHARS = 6

_SECRET_NAME = re.compile(r"(^|[_-])(TOKEN|KEY|PASSWORD|SECRET|CREDENTIALS?)$", re.IGNORECASE)
# Upper case only: `pad_token: 3` in a log is no secret, `HF_TOKEN=...` is.
_ASSIGNMENT = re.compile(r"\b([A-Z][A-Z0-9_]*_(?:TOKEN|KEY|PASSWORD|SECRET)['\"]?\s*[:=]\s*)(['\"]?)[^\s'\",;&]+")
_USERINFO = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
# Values that show what they are: Hugging Face, AWS, GitHub.
_SHAPES = re.compile(r"\b(hf_[A-Za-z0-9]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,})\b")


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret (`HF_TOKEN`, `api-key`)."""
    return bool(_SECRET_NAME.search(name))


def redact(text: str, *, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets.

    Args:
        environment: whose secret values are taken out wherever they occur; the process's own by default.
    """
    variables = os.environ if environment is None else environment
    values = [value for name, value in variables.items() if is_secret_name(name) and len(value) >= MIN_SECRET_CHARS]
    for value in sorted(values, key=len, reverse=True):  # the longest first: one may be part of another
        text = text.replace(value, REDACTED)
    text = _USERINFO.sub(rf"\1{REDACTED}@", text)
    text = _ASSIGNMENT.sub(rf"\1\2{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _SHAPES.sub(REDACTED, text)


def redact_tree(value: Any, *, name: str = "") -> Any:
    """A JSON value without secrets: whole values under secret names, and secrets inside any text."""
    if isinstance(value, Mapping):
        return {key: redact_tree(inner, name=str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(inner, name=name) for inner in value]
    if isinstance(value, str):
        return REDACTED if value and is_secret_name(name) else redact(value)
    return value
