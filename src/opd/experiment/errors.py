"""The one exception of a bad experiment file: for each problem key, value, rule and fix, and never a secret."""

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opd.redaction import REDACTED, is_secret_name, is_secret_value

MAX_VALUE_CHARS = 120
SECRET_RULE = "a secret is never written into a spec: it would end in ConfigMaps, logs and the store"
SECRET_FIX = "give it in the environment, not in a URL, or by reference to a Kubernetes Secret (cluster.envFrom)"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One broken rule."""

    path: str  # dotted; empty for the document itself
    rule: str  # a sentence
    value: object = None  # None means that there is none; a value that holds a secret is replaced
    fix: str = ""
    about: str = ""  # the key's description
    source: str = ""  # `line 12`, `environment variable TP_SIZE`, `--set seed`

    def __post_init__(self) -> None:
        above, _, last = self.path.rpartition(".")
        if any(secret_paths({last: self.value}, above)):
            object.__setattr__(self, "value", REDACTED)

    def below(self, path: str) -> "Problem":
        """Return the problem of a key of the section at `path`."""
        return replace(self, path=".".join(filter(None, (path, self.path))))

    def lines(self) -> list[str]:
        """Return the problem as indented text lines: path and source, then value, rule, fix and description."""
        where = f" ({self.source})" if self.source else ""
        value = "" if self.value is None else show(self.value)
        parts = {"value: ": value, "rule:  ": self.rule, "fix:   ": self.fix, "about: ": self.about}
        return [f"{self.path or '(document)'}{where}", *(f"  {label}{text}" for label, text in parts.items() if text)]


class SpecError(ValueError):
    """A spec that cannot be used; carries every `Problem` found, `str()` is one readable block."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem], origin: str = "") -> None:  # by place: so pickle makes it again
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.origin = origin
        super().__init__(self.problems, origin)

    def __str__(self) -> str:
        num = len(self.problems)
        head = f"{self.origin or 'experiment spec'}: {num} problem{'s' if num != 1 else ''}"
        return "\n".join([head, *(f"  {line}" for problem in self.problems for line in problem.lines())])


def secret_paths(tree: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every literal secret in a tree: by its shape, or by the name, in capitals, of its variable."""
    if isinstance(tree, str) and is_secret_value(tree):
        yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree if isinstance(tree, list) else ()):
        child = f"{path}.{key}".lstrip(".")
        names = [str(key), str(tree.get("name", "")) if key == "value" and isinstance(tree, dict) else ""]
        is_named = any(is_secret_name(name) and (path == "env" or name == name.upper()) for name in names)
        if is_named and value is not None and not isinstance(value, dict | list):
            yield child
        else:
            yield from secret_paths(value, child)


def show(value: object) -> str:
    """Return a value as JSON, shortened to `MAX_VALUE_CHARS`; what JSON cannot hold is shown by its repr."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def nearest(word: str, candidates: Sequence[str]) -> str:
    """Return the candidate closest to `word` (difflib ratio >= 0.6), or an empty string."""
    return next(iter(difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)), "")
