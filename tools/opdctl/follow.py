"""Owns reading a growing log from the store: over attempts, without a gap or a repeat, whole lines only."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from opd.runs.attempts import ENDED_FILE, attempt_prefix
from opd.runs.driver_log import LOG_FILE
from opd.runs.errors import StoreUnavailable
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.runs.store import Store
from opdctl.console import note
from opdctl.listing import Listing
from opdctl.redact import redact

# The trainer uploads every 10 s: looking more often shows nothing more.
POLL_S = 5.0


@dataclass(kw_only=True)
class Position:
    """How far one attempt was printed: `part` is the one being read, `offset` the bytes of it that were."""

    part: int = 0
    offset: int = 0
    carry: bytes = b""


@dataclass
class LogReader:
    """Prints driver logs from where it stopped before; parts of a log only grow, and only the last one does."""

    store: Store
    attempt: int | None = None
    tail: int | None = None
    poll_s: float = POLL_S
    _positions: dict[int, Position] = field(default_factory=dict)
    _num_lines: int = 0

    def print_new(self) -> int:
        """Prints every new line of one look at the store, a half-written last line included; returns how many."""
        return self._print(Listing(self.store), is_final=True)

    def follow(self) -> int:
        """Prints until the run ends (result.json or fatal.json), also through a store that is away for a while."""
        is_away = False
        while True:
            try:
                listing = Listing(self.store)
                is_over = RESULT_FILE in listing or FATAL_FILE in listing or self._attempt_is_over(listing)
                self._print(listing, is_final=is_over)
                if is_away:
                    note("the store is back")
                is_away = False
                if is_over:
                    return self._num_lines
            except StoreUnavailable as error:
                if not is_away:
                    note(f"the store is away, following goes on when it is back: {error}")
                is_away = True
            sys.stdout.flush()
            time.sleep(self.poll_s)

    def _attempt_is_over(self, listing: Listing) -> bool:
        return self.attempt is not None and f"{attempt_prefix(self.attempt)}/{ENDED_FILE}" in listing

    def _print(self, listing: Listing, *, is_final: bool) -> int:
        attempts = [number for number in listing.folders() if self.attempt in (None, number)]
        lines: list[str] = []
        for number in attempts:
            is_first_look = number not in self._positions
            new = self._new_lines(listing, number, is_final=is_final or number != attempts[-1])
            if new and is_first_look and len(listing.folders()) > 1:
                lines.append(f"===== attempt {number} =====")
            lines += new
        if self.tail is not None:
            lines, self.tail = lines[-self.tail :], None  # the first look only
        for line in lines:
            print(redact(line))
        self._num_lines += len(lines)
        return len(lines)

    def _new_lines(self, listing: Listing, attempt: int, *, is_final: bool) -> list[str]:
        position = self._positions.setdefault(attempt, Position())
        data = position.carry
        parts = listing.parts(attempt, LOG_FILE)
        while position.part < len(parts):
            key = parts[position.part]
            is_last = position.part == len(parts) - 1
            if listing.objects[key].size > position.offset or not is_last:
                fetched = self.store.get(key)
                data += fetched[position.offset :]
                position.offset = max(position.offset, len(fetched))
            if is_last:
                break
            position.part, position.offset = position.part + 1, 0
        whole = len(data) if is_final else data.rfind(b"\n") + 1
        position.carry = data[whole:]
        return data[:whole].decode(errors="replace").splitlines()
