"""Whether a process that a test looks at still runs."""

from opd.runs.process import process_start


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return bool(process_start(pid))
