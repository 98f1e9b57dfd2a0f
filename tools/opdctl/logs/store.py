"""A run's log from its store, as it grows: over attempts, without a gap or a repeat, whole lines only."""

import sys
import time
from dataclasses import dataclass, field

from opd.redaction import redact
from opd.runs.driver_log import LOG_FILE
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.store.base import Store
from opdctl.kube.client import wait_until
from opdctl.runs.listing import Listing

# The trainer uploads every 10 s.
POLL_S = 5.0


@dataclass(kw_only=True)
class Position:
    """The read part of one attempt's log: number of the part, bytes of it, and bytes that are not printed yet."""

    part: int = 0
    offset: int = 0
    unprinted: bytes = b""
    has_header: bool = False

    def take(self, *, is_final: bool) -> list[str]:
        """Return the unprinted whole lines; with `is_final` a half-written last line, too."""
        whole = len(self.unprinted) if is_final else self.unprinted.rfind(b"\n") + 1
        # Progress bars return the carriage; no other character ends a line of a model's text.
        text = self.unprinted[:whole].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        self.unprinted = self.unprinted[whole:]
        return text.removesuffix("\n").split("\n") if text else []


@dataclass
class LogReader:
    """Prints driver logs; parts of a log only grow, and only the last part does."""

    store: Store
    tail: int | None = None
    poll_s: float = POLL_S
    _positions: dict[int, Position] = field(default_factory=dict)
    _num_lines: int = 0

    def print_new(self) -> int:
        """Print every new line, a half-written last line included; return their number."""
        return self._print(Listing(self.store), is_final=True)

    def follow(self) -> int:
        """Print until the run ends, also while the store is unreachable for some time."""

        def look() -> int | str:
            listing = Listing(self.store)
            is_over = RESULT_FILE in listing or FATAL_FILE in listing
            self._print(listing, is_final=is_over)
            sys.stdout.flush()
            return self._num_lines if is_over else ""

        return wait_until(look, pause=lambda: time.sleep(self.poll_s))

    def _print(self, listing: Listing, *, is_final: bool) -> int:
        attempts, lines = listing.folders(), list[str]()
        for number in attempts:
            self._fetch(listing, number, self._positions.setdefault(number, Position()))
        for number in attempts:
            position = self._positions[number]
            new = position.take(is_final=is_final or number != attempts[-1])
            if new and not position.has_header and len(attempts) > 1:
                lines.append(f"===== attempt {number} =====")
            position.has_header = position.has_header or bool(new)
            lines += new
        lines, self.tail = lines[-(self.tail or 0) :], None
        for line in lines:
            print(redact(line))
        self._num_lines += len(lines)
        return self._num_lines

    def _fetch(self, listing: Listing, attempt: int, position: Position) -> None:
        """Add the bytes by which the attempt's log has grown; a failure half way keeps what came before it."""
        parts = listing.parts(attempt, LOG_FILE)
        while position.part < len(parts):
            key = parts[position.part]
            is_last = position.part == len(parts) - 1
            if listing.objects[key].size > position.offset or not is_last:
                fetched = self.store.get(key)
                position.unprinted += fetched[position.offset :]
                position.offset = max(position.offset, len(fetched))
            if is_last:
                break
            position.part, position.offset = position.part + 1, 0
