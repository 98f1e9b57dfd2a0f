"""Owns what every section of the spec shares: strictness, field helpers and the reusable value types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # DNS-1035: KubeRay refuses what Helm would still accept
MAX_NAME_CHARS = 47  # KubeRay's limit for a RayJob name: it appends suffixes to build its children's
KEY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"  # a key that Hydra's dotted override grammar can carry
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"

Kind = Literal["grpo", "opd", "opd-agent", "eval", "convert"]
Recipe = Literal["grpo", "grpo-native", "grpo-native-no-kl"]
Dtype = Literal["bf16", "fp16", "fp32"]
KINDS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "eval", "convert")


class Section(BaseModel):
    """A group of keys: unknown keys refused, no coercion between types, immutable, finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1)]
Paths = Annotated[
    tuple[Text, ...],
    BeforeValidator(_as_tuple),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
]
Scalar = bool | int | float | str
# Free-form keyword arguments for another library: scalars, lists of scalars and nested maps, no null.
Extras = dict[Annotated[str, Field(pattern=KEY_PATTERN)], Any]
