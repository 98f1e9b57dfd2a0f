"""The one exception of a bad experiment file: for each problem the key, its value, the rule and the fix."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MAX_VALUE_CHARS = 120


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One broken rule.

    Args:
        path: dotted path of the key (`data.train_batch_size`); empty for the document itself.
        rule: the rule that was broken, as a sentence.
        value: the offending value, already redacted where it may be a secret; None means that there is none.
        fix, about: the text to write instead, and the key's description; may be empty.
        source: the value's origin (`line 12`, `environment variable TP_SIZE`, `--set`); may be empty.
    """

    path: str
    rule: str
    value: object = None
    fix: str = ""
    about: str = ""
    source: str = ""

    def below(self, path: str) -> Problem:
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


def show(value: object) -> str:
    """Return a value as JSON, shortened to `MAX_VALUE_CHARS`; falls back to repr for what JSON cannot hold."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def nearest(word: str, candidates: Sequence[str]) -> str:
    """Return the candidate closest to `word` (difflib ratio >= 0.6), or an empty string."""
    return next(iter(difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)), "")
