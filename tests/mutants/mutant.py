"""One deliberate fault: a piece of a file that another replaces."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A replacement of `old`, which occurs once in `file` (below src/opd) or starts at its character `offset`."""

    what: str
    file: str
    old: str
    new: str
    offset: int | None = None

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    def describe(self) -> str:
        return f"{self.file}: {self.what}"

    def apply(self, source: Path) -> None:
        """Change the file below `source`.

        Raises:
            LookupError: `old` is missing or not unique: the code has changed, and the mutant must follow.
        """
        path = source / "opd" / self.file
        text = path.read_text()
        start = self.offset
        if start is None:
            if text.count(self.old) != 1:
                raise LookupError(f"{self.describe()}: {path} holds {self.old!r} {text.count(self.old)} times")
            start = text.index(self.old)
        assert text[start:].startswith(self.old)
        path.write_text(text[:start] + self.new + text[start + len(self.old) :])
