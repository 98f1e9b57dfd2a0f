"""What a conversion says while it works: a line a stage, a bar for long ones, warnings that are kept for the model card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter:
    """Lines and bars on stderr; where that is no terminal, a bar prints its last state only."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        self.console.print(f"opd.convert: {text}")

    def warn(self, text: str) -> None:
        """Say it, and keep it for whoever reads the result."""
        self.warnings.append(text)
        self.say(f"warning: {text}")

    @contextmanager
    def bar(self, description: str, total: int, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
        """A progress bar; what is yielded advances it and may be called from threads."""
        count = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description:<22}"), BarColumn(), count, TimeRemainingColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(description, total=total)
            yield lambda amount: progress.update(task, advance=amount)
