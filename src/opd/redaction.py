"""The one rule for secrets: names and values that specs must not hold and that logs, reports and the stored log never show.

Little is imported, so that the process that copies a run's log starts at once. Each pattern takes time
linear in the text: quantifiers are bounded or possessive, and a word is tried from its beginning only.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opd.text import inert

REDACTED = "<redacted>"
PLACEHOLDER = "..."
"""The value in a command that the tool proposes; the person replaces it."""
MIN_SECRET_CHARS = 6
"""Values of the environment that are shorter ("1", "none") would take innocent text with them."""
MAX_CHARS = 2**20
"""Longer texts are cut, so that one text cannot hold up the reader of many."""

_SECRET_NAME = re.compile(
    r"(?i:(?:^|[_.-])(?:token|key|pass|passphrase|pat|secret|credentials?|access_key_id|api_?key)$"
    r"|(?:password|passwd|[_.-]pwd)$)|[a-z0-9](?:Key|Token|Secret|Password)$"
)
_QUOTED = r"(?:\\{0,2}\"[^\"\\]{1,4096}\\{0,2}\"?|'[^']{1,4096}'?"
_VALUE = rf"{_QUOTED}|[^\s'\",;&<]{{1,4096}})"
# After a name: in shells, YAML, JSON (also JSON within JSON) and connection strings.
_IS = r"\\{0,2}['\"]?[ \t]{0,8}[:=]\s{0,8}"
_LOWER = (
    r"password|passwd|passphrase|(?:client|app|shared|webhook)[_-]?secret|"
    r"(?:api|access|secret|private|account|signing|encryption)[_-]?key(?:[_-]?id)?|"
    r"(?:auth|access|api|bearer|refresh|session|security|secret|hf|hub|github|gitlab|wandb|ray)[_-]?token"
)
_ASSIGNMENTS = tuple(
    re.compile(f"({before}){_VALUE}")
    for before in (
        # Any name in capitals that ends like a secret.
        rf"(?<![\w])(?:[A-Z][A-Z0-9_]{{0,128}})?(?:TOKEN|KEY|PASSWORD|PASSWD|PASS|PAT|_PWD|SECRET|CREDENTIALS?){_IS}(?:\|[+-]?\s{{1,8}})?",
        # Names in small letters that no log line gives to anything else: `pad_token: 3` is no secret.
        rf"(?<![\w.-])(?i:[\w.-]{{0,128}}?(?:{_LOWER})){_IS}(?:\|[+-]?\s{{1,8}})?",
        # Options of a command line.
        rf"(?<![\w-])--?(?i:{_LOWER}|token|secret)(?:=|[ \t]{{1,4}})(?!-)",
        r"(?<![\w.-])(?:secret|token|[Pp]wd)=(?=[^=])|\"(?:secret|token|key|auth|credentials?)\"\s{0,8}:\s{0,8}(?=\"[^\"\s<]{8})",
        # Signed URLs: AWS, Google, Azure's shared access signatures.
        r"[?&;](?i:sig|signature|token|key|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential))=",
        r"(?i:(?<![\w-])(?:set-)?cookie:[ \t]{0,4}[^\s=]{1,64}=)",
        r"(?i:<(?:password|secret|token|AWSAccessKeyId|api[_-]?key)>)",
    )
)
_USERINFO = re.compile(
    r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}://)"
    r"(?:[^/\s:@]{0,256}:[^/\s]{1,256}@|:[^\s@]{1,256}@|(?<=https://)[^/\s:@]{8,256}@|(?<=http://)[^/\s:@]{8,256}@)"
)
_AUTHORIZATION = re.compile(
    r"(?<![\w-])((?:Bearer|Basic|(?i:authorization:\s{0,4})(?:[A-Za-z]{1,16}[ \t]{1,4})?)[ \t]{0,4})[A-Za-z0-9._~+/=-]{6,}+"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
# Values that show what they are: Hugging Face, AWS, GitHub, GitLab, OpenAI and Anthropic, Google, Slack, npm, Docker.
# Then Stripe, Databricks, Vault, JWT, and W&B's key after its own words.
_SHAPES = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{8,}+|(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+|"
    r"glpat-[\w-]{16,}+|sk-[\w-]{20,}+|[sr]k_live_[A-Za-z0-9]{16,}+|AIza[\w-]{30,}+|ya29\.[\w-]{20,}+|1//0[\w-]{20,}+|"
    r"xox[abprs]-[A-Za-z0-9-]{10,}+|npm_[A-Za-z0-9]{30,}+|dckr_pat_[\w-]{20,}+|dapi[0-9a-f]{32}|hvs\.[\w-]{20,}+|"
    r"eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]{8,}+)|(?<=logging in with )[0-9a-f]{40}"
)
# Each pattern needs one of these in its text, in small letters: most lines of a log have none, and are not searched.
_SIGNS = (
    "token", "key", "pass", "pat", "pwd", "secret", "credential", "auth", "sig", "cookie", "://", "bearer", "basic", "hf_",
    "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "sk-", "k_live_", "aiza", "ya29.", "1//0", "xox", "npm_", "dapi",
    "hvs.", "eyj", "logging in with",
)  # fmt: skip
_ACCOUNT_KEY = re.compile(r"(?i)(?:AccountKey|SharedAccessSignature)=[^;\s]{8}")


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Return True if a variable or key of this name holds a secret (`HF_TOKEN`, `PGPASSWORD`, `api-key`)."""
    return bool(_SECRET_NAME.search(name[:256]))


def is_secret_value(text: str) -> bool:
    """Return True if a text shows by its own shape that it holds a secret: a token, a private key, a password in a URL."""
    text = text[:MAX_CHARS]
    return any(pattern.search(text) for pattern in (_SHAPES, _PRIVATE_KEY, _USERINFO, _ACCOUNT_KEY))


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without credentials, for a child process that runs code of others."""
    return {name: value for name, value in variables.items() if not is_secret_name(name) and not is_secret_value(value)}


def secret_values(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values of an environment, the longest first, since one may be part of another."""
    values = [variables[name] for name in variables if is_secret_name(name)]
    return tuple(sorted((value for value in values if len(value) >= MIN_SECRET_CHARS), key=len, reverse=True))


def without(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return the text without what looks like a secret, and without the given secrets wherever they occur."""
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}[... {len(text) - MAX_CHARS} characters left out ...]"
    for value in secrets:
        text = text.replace(value, REDACTED)
    folded = text.casefold()  # as patterns without case compare
    if not any(sign in folded for sign in _SIGNS):
        return text
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _USERINFO.sub(rf"\1{REDACTED}@", text)
    for assignment in _ASSIGNMENTS:
        text = assignment.sub(_without_value, text)
    text = _AUTHORIZATION.sub(rf"\1{REDACTED}", text)
    return _SHAPES.sub(REDACTED, text)


def redact(text: str) -> str:
    """Return the text without secrets, also of this process's environment, and without characters that a terminal obeys."""
    return _shown(text, secret_values(os.environ))


def one_line(text: str) -> str:
    """Return `redact(text)` without line breaks, for a name."""
    return inert(redact(text), keep="")


def redact_tree(value: Any) -> Any:
    """Return a JSON value that may be shown: no values under secret names, no secrets, no control characters."""
    return _tree(value, "", secret_values(os.environ))


def _tree(value: Any, name: str, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {_shown(str(key), secrets): _tree(inner, str(key), secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_tree(inner, name, secrets) for inner in value]
    if isinstance(value, str):
        return REDACTED if value and is_secret_name(name) else _shown(value, secrets)
    return value


def _shown(text: str, secrets: tuple[str, ...]) -> str:
    return inert(without(text, secrets))


def _without_value(match: re.Match[str]) -> str:
    """Return the assignment with its value gone and its quotes kept."""
    value = match[0][len(match[1]) :]
    if value == PLACEHOLDER or value.startswith(REDACTED):
        return match[0]
    quote = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark)), "")
    return f"{match[1]}{quote}{REDACTED}{quote}"
