"""The command line within the test's own process."""

from __future__ import annotations

import pytest

from opdctl import cli
from opdctl.console import run_guarded


def invoke(*words: object) -> int:
    """The exit code of `opdctl WORDS`, also where the tool would end its process at once."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opdctl.console.leave_at_once", leave)
        try:
            return run_guarded(lambda: cli._invoke([str(word) for word in words]))
        except SystemExit as end:
            return int(end.code or 0)
