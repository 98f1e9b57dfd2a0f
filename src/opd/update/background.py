"""A call on a thread of its own: how it ended is asked for later, and never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    """One call that has begun; a process that ends does not wait for it."""

    def __init__(self, call: Callable[[], T], *, name: str):
        self._call: Callable[[], T] | None = call
        self._answer: T | None = None
        self._error: BaseException | None = None
        # Not the thread's own end: Python 3.11 takes a thread whose `join` was interrupted for ended.
        self._has_ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the call has ended, or for so long; whether it has."""
        return self._has_ended.wait(timeout_s)

    def result(self) -> T:
        """What the call returned, waiting for it; raises what it raised."""
        self._has_ended.wait()
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]

    def _run(self) -> None:
        call, self._call = self._call, None  # what it holds (copies of weights) goes with it
        assert call is not None
        try:
            self._answer = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        finally:
            self._has_ended.set()
