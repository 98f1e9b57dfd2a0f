"""The one rule of what is never printed: secret values of the environment, of URLs and of assignments in texts, and
characters that a terminal obeys."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opd.text import inert

REDACTED = "<redacted>"
PLACEHOLDER = "..."
"""In a command that the tool proposes: the person puts the value there."""
# Shorter values ("1", "none") would take innocent text with them.
MIN_SECRET_CHARS = 6
# Longer texts are not kept for the case that they come again.
MAX_KEPT_CHARS = 200

_SECRET_NAME = re.compile(
    r"(?i:(^|[_.-])(token|key|password|passwd|secret|credentials?)$)|[a-z0-9](Key|Token|Secret|Password)$"
)
# What follows a name: in shells, YAML, JSON (also JSON within JSON) and connection strings.
_IS = r"\\?['\"]?\s*[:=]\s*"
_VALUE = r"(?:\\?\"[^\"\\]*\\?\"|'[^']*'|[^\s'\",;&<]+)"
_ASSIGNMENTS = tuple(
    re.compile(f"({name}){_VALUE}")
    for name in (
        # In capitals whatever ends like a secret (`SECRET=`, `HF_TOKEN: `) ...
        rf"\b(?:[A-Z][A-Z0-9_]*_)?(?:TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS?){_IS}",
        # ... in small letters what no log line calls anything else: `pad_token: 3` is no secret.
        r"(?<![\w.-])(?i:[\w.-]*(?:password|passwd|(?:client|app|shared|webhook)[_-]?secret|"
        r"(?:api|access|secret|private|account|signing|encryption)[_-]?key(?:[_-]?id)?|"
        rf"(?:auth|access|api|bearer|refresh|session|security|secret|hf|hub|github|gitlab|wandb|ray)[_-]?token)){_IS}",
        r"(?<![\w.-])(?:secret|[Pp]wd)=(?=[^=])|\"(?:secret|token|key|credentials?)\"\s*:\s*(?=\"[^\"\s<]{8,}\")",
        # Signed URLs: AWS, Google, Azure's shared access signatures.
        r"[?&;](?i:sig|signature|token|key|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential))=",
    )
)
_USERINFO = re.compile(r"\b([a-z][a-z0-9+.-]{0,30}://)[^/\s:@]*:[^/\s]+@", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"\b((?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# Values that show what they are: Hugging Face, AWS, GitHub, GitLab, OpenAI and Anthropic, Google, Slack, npm, Docker, JWT.
_SHAPES = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|"
    r"glpat-[A-Za-z0-9_-]{16,}|sk-[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|"
    r"xox[abprs]-[A-Za-z0-9-]{10,}|npm_[A-Za-z0-9]{30,}|dckr_pat_[A-Za-z0-9_-]{20,}|"
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"
)


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret (`HF_TOKEN`, `api-key`)."""
    return bool(_SECRET_NAME.search(name))


def redact(text: str, *, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets, and without what a terminal would obey.

    Args:
        environment: whose secret values are taken out wherever they occur; the process's own by default.
    """
    return _without(text, _secrets(os.environ if environment is None else environment))


def _secrets(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The secret values, the longest first: one may be part of another."""
    values = [variables[name] for name in variables if is_secret_name(name)]
    return tuple(sorted((value for value in values if len(value) >= MIN_SECRET_CHARS), key=len, reverse=True))


def _without(text: str, secrets: tuple[str, ...]) -> str:
    for value in secrets:
        text = text.replace(value, REDACTED)
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _USERINFO.sub(rf"\1{REDACTED}@", text)
    for assignment in _ASSIGNMENTS:
        text = assignment.sub(_without_value, text)
    text = _AUTHORIZATION.sub(rf"\1{REDACTED}", text)
    return inert(_SHAPES.sub(REDACTED, text))


# Of many specs the names and most values are the same.
_without_again = lru_cache(2**14)(_without)


def one_line(text: str) -> str:
    """What must be one line, such as a name: `redact`, and no line breaks either."""
    return inert(redact(text), keep="")


def _without_value(match: re.Match[str]) -> str:
    """The assignment with its value gone and its quotes kept."""
    value = match[0][len(match[1]) :]
    if value == PLACEHOLDER:
        return match[0]
    quote = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark)), "")
    return f"{match[1]}{quote}{REDACTED}{quote}"


def redact_tree(value: Any) -> Any:
    """A JSON value that may be shown: no values under secret names, no secrets and no control characters in any text."""
    return _tree(value, "", _secrets(os.environ))


def _tree(value: Any, name: str, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {_leaf(str(key), secrets): _tree(inner, str(key), secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_tree(inner, name, secrets) for inner in value]
    if isinstance(value, str):
        return REDACTED if value and is_secret_name(name) else _leaf(value, secrets)
    return value


def _leaf(text: str, secrets: tuple[str, ...]) -> str:
    return (_without_again if len(text) <= MAX_KEPT_CHARS else _without)(text, secrets)
