"""What can go wrong in a conversion, beside the errors of `opd.runs` for checkpoints and stores."""

from __future__ import annotations

from collections.abc import Iterable

from opd.errors import IncompleteCheckpoint


class ConvertError(Exception):
    """The checkpoint is whole but cannot become the folder that was asked for; `exit_code` is the command's."""

    exit_code = 1


class BadRequest(ConvertError):
    """The request itself cannot be followed, whatever the checkpoint holds."""

    exit_code = 2


def incomplete(where: str, problems: Iterable[str], fix: str) -> IncompleteCheckpoint:
    """One block: which checkpoint, everything that is wrong with it, and what to do."""
    return IncompleteCheckpoint(
        "\n".join([f"checkpoint {where} cannot be converted:", *(f"  - {problem}" for problem in problems), fix])
    )
