"""Types of values in an experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from opd.experiment.base import MAX_NAME_CHARS, NAME_PATTERN, matching


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Text = Annotated[str, Field(min_length=1)]
RunName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_CHARS)]
KeyName = Annotated[str, matching(r"^[A-Za-z_][A-Za-z0-9_-]*$", "a name of letters, digits, `_` and `-`")]
EnvName = Annotated[str, matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "a name of letters, digits and `_`, no digit first")]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Dtype = Literal["bf16", "fp16", "fp32"]
Offload = bool | Literal["auto"]
Extras = dict[KeyName, Any]  # for another library
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXTS = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]})
Paths = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple), Field(min_length=1), _TEXTS]
"""One text or a list of texts."""
