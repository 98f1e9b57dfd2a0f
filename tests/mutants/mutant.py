"""One deliberate fault: a piece of a file that is replaced, and the tests that should notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`old` stands exactly once in `file` (below src/opd), or begins at the character `offset` of it."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    offset: int | None = None

    def describe(self) -> str:
        return f"{self.file}: {self.what}"

    def apply(self, source: Path) -> None:
        """Change the file below `source`.

        Raises:
            LookupError: the piece is not there, or more than once: the code has changed, and the mutant must follow.
        """
        path = source / "opd" / self.file
        text = path.read_text()
        start = self.offset
        if start is None:
            if text.count(self.old) != 1:
                raise LookupError(f"{self.describe()}: {self.old!r} stands {text.count(self.old)} times in {path}")
            start = text.index(self.old)
        assert text[start:].startswith(self.old)
        path.write_text(text[:start] + self.new + text[start + len(self.old) :])
