"""The kinds, the strict base class of all sections, and names of runs."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticUndefined, to_jsonable_python

from opd.experiment.errors import Problem

Kind = Literal["grpo", "opd", "opd-agent", "sft", "eval", "passrate", "convert", "pipeline"]
SAMPLES: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "eval", "passrate")
RUNS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft", "eval", "passrate")
FILE_KINDS: tuple[Kind, ...] = (*RUNS, "convert", "pipeline")  # each has a chart; `pipeline` is made of runs
TRAINS: tuple[Kind, ...] = ("grpo", "opd", "opd-agent", "sft")
DISTILS: tuple[Kind, ...] = ("opd", "opd-agent")
ASKS: tuple[Kind, ...] = ("eval", "passrate")

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # DNS-1035: KubeRay refuses what Helm would still accept
MAX_NAME_CHARS = 47  # KubeRay's limit for a RayJob name: it appends suffixes to build its children's
MAX_INTEGER = 2**53  # beyond it a float64, and so Helm and JSON, cannot hold every integer
PATTERN_WORDS: dict[str, str] = {}  # for each pattern of a value
_HASH_CHARS = 6


class Section(BaseModel):
    """A group of keys: unknown keys refused, no coercion between types, immutable, finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between the section's own keys, under paths that begin in the section."""
        return iter(())

    def broken_rules(self) -> Iterator[Problem]:
        """Yield what is wrong between the keys of the section and of every section in it."""
        yield from self.check()
        for name, field in type(self).model_fields.items():
            value, here = getattr(self, name), field.alias or name
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
            for at, item in [(here, value), *((f"{here}.{at}", item) for at, item in items)]:
                if isinstance(item, Section):
                    yield from (problem.below(at) for problem in item.broken_rules())

    def broken(self, path: str, rule: str, fix: str) -> Problem:
        """Return the problem of the key at a path in the section, with its value."""
        return Problem(path=path, value=value_at(self, path), rule=rule, fix=fix)


def key(about: str, default: Any = PydanticUndefined, **limits: Any) -> Any:
    """Return a field; without a default (a value, or a section) it is required, or its description says the default."""
    given = {"default_factory": default} if callable(default) else {"default": default}
    return Field(description=about, **given, **limits)


def matching(pattern: str, words: str, **limits: Any) -> Any:
    """Return the field of a text that matches a pattern, which errors tell in words."""
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern, **limits)


def named(*names: str) -> Any:
    """Return the field of a text: one of the names, or a user's own function as package.module:name."""
    words = ", ".join([*map(repr, names), "or a function of yours as package.module:name"])
    return matching(rf"^({'|'.join(names)}|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$", words)


def joined(parts: Sequence[str], *, distinct: str = "") -> str:
    """Return one name of several texts, with a hash of `distinct` or of them where it is too long or loses letters."""
    name = "-".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)))
    if len(name) <= MAX_NAME_CHARS and all(part.isascii() for part in parts):
        return name
    digest = hashlib.sha256((distinct or "\0".join(parts)).encode()).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1].rstrip('-')}-{digest}"


def value_at(section: Any, path: str) -> Any:
    """Return the value at a dotted path of a file as plain data; None for a key that the section lacks."""
    for name in filter(None, path.split(".")):
        if isinstance(section, tuple | list):
            section = section[int(name)]
        elif isinstance(section, dict):
            section = section.get(name)
        else:
            section = getattr(section, re.sub("([A-Z])", r"_\1", name).lower(), None)
    return to_jsonable_python(section, by_alias=True, exclude_none=True)
