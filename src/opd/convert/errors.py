"""Errors of a conversion, in addition to the errors of checkpoints and stores, and its lines on stderr."""

import sys
from collections.abc import Iterable

from opd.errors import CheckpointError, RunError


class ConvertError(RunError):
    """The checkpoint is whole but cannot become the folder that was asked for."""


class BadRequest(ConvertError):
    """The request itself cannot be followed, for any content of the checkpoint."""

    exit_code = 2


def incomplete(where: str, problems: Iterable[str], fix: str) -> CheckpointError:
    """Return one error: the checkpoint, all its problems, and the fix."""
    return CheckpointError(
        "\n".join([f"checkpoint {where} cannot be converted:", *(f"  - {problem}" for problem in problems), fix])
    )


def say(text: object) -> None:
    """Print a line on stderr."""
    print(f"opd.convert: {text}", file=sys.stderr, flush=True)


class Warnings(list[str]):
    """Warnings on stderr, which the model card keeps."""

    def add(self, text: str) -> None:
        self.append(text)
        say(f"warning: {text}")
