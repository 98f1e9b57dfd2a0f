"""The tool's own error: one block of text, and the exit code that the tool ends with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class ToolError(Exception):
    """A failure with the text that helps to mend it; `exit_code` is 1, or 2 for a bad argument."""

    def __init__(self, message: str, *, fix: str = "", exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.fix = fix
        self.exit_code = exit_code


def usage_error(message: str, *, fix: str = "") -> ToolError:
    """Return the error of a bad argument, before anything was started."""
    return ToolError(message, fix=fix, exit_code=EXIT_USAGE)
