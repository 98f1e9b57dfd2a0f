"""Types of values in an experiment file."""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import BeforeValidator, Field, WithJsonSchema

from opd.experiment.base import MAX_NAME_CHARS, NAME_PATTERN, matching


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _as_files(value: Any) -> Any:
    listed = (value,) if isinstance(value, dict) else _as_tuple(value)
    if not isinstance(listed, tuple):
        return value
    return tuple(hub_url(**one) if isinstance(one, dict) else one for one in listed)


def hub_url(**parts: Any) -> str:
    """Return a data set of the hub, `{path, split, name, revision}`, as one text."""
    known = ("path", "split", "name", "revision")
    if unknown := sorted(str(part) for part in parts if part not in known or not isinstance(parts[part], str)):
        raise ValueError(f"a data set of the hub has the texts {', '.join(known)}, and not {', '.join(unknown)}")
    if not parts.get("path"):
        raise ValueError("a data set of the hub needs its path, OWNER/NAME")
    if re.search(r"^[./~]|/.*/|\.(parquet|jsonl?|csv)$", parts["path"]):
        raise ValueError(f"a data set of the hub is OWNER/NAME; write the file {parts['path']} alone, without a map")
    more = {part: parts[part] for part in known[1:] if part in parts}
    return f"{HUB}{parts['path']}" + (f"?{urlencode(more)}" if more else "")


HUB = "hub://"
Text = Annotated[str, Field(min_length=1)]
RunName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_CHARS)]
KeyName = Annotated[str, matching(r"^[A-Za-z_][A-Za-z0-9_-]*$", "a name of letters, digits, `_` and `-`")]
EnvName = Annotated[str, matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "a name of letters, digits and `_`, no digit first")]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Dtype = Literal["bf16", "fp16", "fp32"]
Offload = bool | Literal["auto"]
Extras = dict[KeyName, Any]  # for another library
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXTS = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]})
Paths = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple), Field(min_length=1), _TEXTS]
"""One text or a list of texts."""
_SERVER = r"^https?://[^/@\s]+/v1$"
_SERVER_TEXT: dict[str, Any] = {"type": "string", "pattern": _SERVER}
_SERVERS = WithJsonSchema({"anyOf": [_SERVER_TEXT, {"type": "array", "items": _SERVER_TEXT}]})
ServerUrl = Annotated[str, matching(_SERVER, "http://HOST:PORT/v1, without credentials")]
Servers = Annotated[tuple[ServerUrl, ...], BeforeValidator(_as_tuple), _SERVERS]
"""One address of an OpenAI-compatible server or a list of them."""
_HUB: dict[str, Any] = {"type": "object", "additionalProperties": _TEXT, "required": ["path"]}
_FILES = WithJsonSchema({"anyOf": [_TEXT, _HUB, {"type": "array", "items": {"anyOf": [_TEXT, _HUB]}, "minItems": 1}]})
Files = Annotated[tuple[Text, ...], BeforeValidator(_as_files), Field(min_length=1), _FILES]
"""`Paths`, or data sets of the hub as maps."""
