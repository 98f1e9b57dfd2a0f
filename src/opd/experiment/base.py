"""The strict base class of all sections, value types, and names of runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticUndefined, to_jsonable_python

from opd.experiment.errors import Problem

Kind = Literal["grpo", "opd", "opd-agent", "sft", "eval", "passrate", "convert", "pipeline"]
KINDS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft", "eval", "passrate", "convert")
"""The kinds that are one run."""
FILE_KINDS: tuple[Kind, ...] = (*KINDS, "pipeline")
"""Every kind that a file may be of, each with a chart; `pipeline` is made of runs."""
SAMPLES: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "eval", "passrate")
RUNS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft", "eval", "passrate")
TRAINS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft")
DISTILS: tuple[Kind, ...] = ("opd", "opd-agent")
ASKS: tuple[Kind, ...] = ("eval", "passrate")

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # DNS-1035: KubeRay refuses what Helm would still accept
MAX_NAME_CHARS = 47  # KubeRay's limit for a RayJob name: it appends suffixes to build its children's
KEY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"  # a key that Hydra's dotted override grammar can carry
MAX_INTEGER = 2**53  # beyond it a float64, and so Helm and JSON, cannot hold every integer
PATTERN_WORDS: dict[str, str] = {}
"""Each pattern of a value, in words."""
_HASH_CHARS = 6


class Section(BaseModel):
    """A group of keys: unknown keys refused, no coercion between types, immutable, finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between the section's own keys, under paths that begin in the section."""
        return iter(())

    def broken(self, path: str, rule: str, fix: str) -> Problem:
        """Return the problem of the key at a path in the section, with its value."""
        return Problem(path=path, value=value_at(self, path), rule=rule, fix=fix)


def value_at(section: Any, path: str) -> Any:
    """Return the value at a dotted path of a file as plain data; None for a key that the section lacks."""
    for key in filter(None, path.split(".")):
        if isinstance(section, tuple | list):
            section = section[int(key)]
        elif isinstance(section, dict):
            section = section.get(key)
        else:
            section = getattr(section, re.sub("([A-Z])", r"_\1", key).lower(), None)
    return to_jsonable_python(section, by_alias=True, exclude_none=True)


def key(about: str, default: Any = PydanticUndefined, **limits: Any) -> Any:
    """Return a field with its description.

    Args:
        about: the description; ends with the default where that follows from other keys (`opd.experiment.defaults`).
        default: a value, or a section whose own defaults count; a key without a default is required or computed.
        limits: bounds and examples, as pydantic's `Field` has them.
    """
    if callable(default):
        return Field(default_factory=default, description=about, **limits)
    return Field(default, description=about, **limits)


def matching(pattern: str, words: str, **limits: Any) -> Any:
    """Return the field of a text that matches a pattern, which errors tell in words."""
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern, **limits)


def named(*names: str) -> Any:
    """Return the field of a text: one of the names, or a user's own function as package.module:name."""
    words = ", ".join([*map(repr, names), "or a function of yours as package.module:name"])
    return matching(rf"^({'|'.join(names)}|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$", words)


def slug(text: str) -> str:
    """Return lower-case letters, digits and single dashes: `3e-06` and `1.5` become `3e-06` and `1-5`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def joined(parts: Sequence[str], *, distinct: str = "") -> str:
    """Return one name of several texts: the same for the same texts, another one for others.

    A name that would be too long, or that loses letters other than English ones, ends in a hash.

    Args:
        parts: the texts.
        distinct: what the hash is made of; the texts by default.
    """
    name = "-".join(filter(None, map(slug, parts)))
    if len(name) <= MAX_NAME_CHARS and all(part.isascii() for part in parts):
        return name
    digest = hashlib.sha256((distinct or "\0".join(parts)).encode()).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1].rstrip('-')}-{digest}"


def _extras(value: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return arguments that one Hydra override a leaf can carry."""
    for name, item in value.items():
        where = f"{path}{name}"
        if not re.fullmatch(KEY_PATTERN, name):
            raise ValueError(f"the key `{where}` must match {KEY_PATTERN}: it becomes part of a Hydra override")
        if isinstance(item, dict):
            _extras(item, f"{where}.")
        elif isinstance(item, list) and any(isinstance(part, dict | list) for part in item):
            raise ValueError(f"`{where}` must be a list of plain values: Hydra overrides carry no nested lists or maps")
    return value


def _as_tuple(value: Any) -> Any:
    value = (value,) if isinstance(value, str) else value
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[str, Field(min_length=1)]
KeyName = Annotated[str, matching(KEY_PATTERN, "a name of letters, digits, `_` and `-`, a letter or `_` first")]
EnvName = Annotated[
    str, matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name: letters, digits and `_`, no digit first")
]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, le=1)]
TopK = Literal[-1] | Count
Dtype = Literal["bf16", "fp16", "fp32"]
Offload = bool | Literal["auto"]
Extras = Annotated[dict[str, Any], AfterValidator(_extras)]
"""Free-form keyword arguments for another library: plain values, lists of them and nested maps."""
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
Paths = Annotated[
    tuple[Text, ...],
    BeforeValidator(_as_tuple),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}),
]
"""One text or a list of texts."""
