"""Asks a person for the values of keys: a flag answers before the question, and a wrong answer is asked for again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from opd.config import SpecError
from opd.config.keys import Key
from opdctl.console import fail, note
from opdctl.errors import ToolError, usage_error

Answers = dict[str, Any]


class Interview:
    """Values by the dotted paths of their keys, in the order of the questions."""

    def __init__(self, keys: Mapping[str, Key], check: Callable[[Answers], None], *, is_asking: bool) -> None:
        """`check` raises SpecError where the answers so far break a rule; without `is_asking` only flags and offers count."""
        self.answers: Answers = {}
        self._keys, self._check, self._is_asking = keys, check, is_asking
        self._missing: list[tuple[str, str]] = []
        if is_asking:
            note("Enter takes what stands in [brackets]; where nothing does, and with -, the key is left out.")

    def ask(
        self,
        path: str,
        given: str | None,
        *,
        default: str = "",
        offered: Sequence[str] = (),
        flag: str = "",
        says: str = "",
        read: Callable[[str], Answers] | None = None,
    ) -> str:
        """The answer to one question as text, empty for none; `answers` has what `read` makes of it.

        Args:
            given: the flag's text; None where there is none.
            default: what Enter takes; the first of `offered`, which the cluster has, where it is empty.
            flag: the flag that answers it, of a key that is needed.
            says: the question, where the key's own description is none.
            read: the keys and values that a text stands for; the key itself and the text where it is None.

        Raises:
            ToolError, SpecError: the flag's value cannot be used.
        """
        default = default or next(iter(offered), "")
        is_asked = given is None and self._is_asking
        while True:
            text = self._prompt(path, default, offered, says) if is_asked else default if given is None else given
            if not text and flag and not is_asked:
                self._missing.append((path, flag))
            try:
                if not text and flag and is_asked:
                    raise usage_error(f"{path} is needed")
                if text:
                    self._take({path: text} if read is None else read(text))
                return text
            except (ToolError, SpecError) as error:
                if not is_asked:
                    raise
                fail(str(error), fix=getattr(error, "fix", ""))

    def check_needed(self) -> None:
        """Ends the questions.

        Raises:
            ToolError: no flag answers what is needed, and nobody was asked; all of it at once.
        """
        if self._missing:
            paths, flags = (", ".join(words) for words in zip(*self._missing, strict=True))
            raise usage_error(f"needed, and nothing says it: {paths}", fix=f"give {flags}")

    def _take(self, values: Answers) -> None:
        """Keeps what breaks no rule; a rule about other keys is for the end, when they are known."""
        after = {**self.answers, **values}
        try:
            self._check(after)
        except SpecError as error:
            mine = [item for item in error.problems if any(_is_about(item.path, path) for path in values)]
            if mine:
                raise SpecError(mine, origin=error.origin) from None
        self.answers = after

    def _prompt(self, path: str, default: str, offered: Sequence[str], says: str) -> str:
        key = self._keys.get(path)
        example = next(iter(key.node.get("examples", ())), "") if key else ""
        if isinstance(example, list):
            example = ",".join(example)
        hint = f" There are: {', '.join(offered)}." if offered else f" For example {example}." if example else ""
        text = f"{path}: {says or (key.says if key else '')}{hint}"
        answer = str(typer.prompt(text, default=default, show_default=bool(default), err=True)).strip()
        return "" if answer == "-" else answer


def _is_about(problem: str, path: str) -> bool:
    return problem == path or problem.startswith((f"{path}.", f"{path}["))
