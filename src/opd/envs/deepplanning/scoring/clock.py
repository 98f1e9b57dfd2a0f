"""Times of a plan and of the database as the benchmark's rules read them: two ways, which differ at 24:00."""

import re
from typing import NamedTuple

from opd.envs.travel.entries import MINUTES_PER_DAY

_CLOCK = r"([0-9]{1,2}):([0-9]{2})"
_SLOT = re.compile(rf"\s*{_CLOCK}\s*-\s*{_CLOCK}")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2})")
_LAST_MINUTE = MINUTES_PER_DAY - 1


class Slot(NamedTuple):
    """From when to when, in minutes from midnight; an end before the start is on the next day."""

    start: int
    end: int

    @property
    def crosses_midnight(self) -> bool:
        return self.end < self.start

    @property
    def length(self) -> int:
        """In minutes."""
        return self.end - self.start + (MINUTES_PER_DAY if self.crosses_midnight else 0)


def minute_of(text: str) -> int | None:
    """H:MM as minutes from midnight, 24:00 as the day's last minute; None for anything else."""
    found = _TIME.fullmatch(text.strip())
    return None if found is None else _minute(found[1], found[2])


def slot_of(text: str) -> Slot | None:
    """`HH:MM-HH:MM` at the beginning of a text; None where a time is none. 24:00 is the day's last minute."""
    found = _SLOT.match(text)
    if found is None:
        return None
    start, end = _minute(found[1], found[2]), _minute(found[3], found[4])
    return None if start is None or end is None else Slot(start, end)


def stated_minutes(text: str) -> tuple[int | None, int | None]:
    """Start and end as they are written, each for itself: 24:00 is 1440. The rules on coverage read times like this."""
    parts = text.split("-")
    return (_written(parts[0]), _written(parts[1])) if len(parts) > 1 else (None, None)


def within(slot: Slot, opens: int, closes: int) -> bool:
    """Whether a slot lies in opening hours, which cross midnight where they close before they open."""
    if opens <= closes:
        return not slot.crosses_midnight and slot.start >= opens and slot.end <= closes
    if slot.crosses_midnight:
        return slot.start >= opens and slot.end <= closes
    return min(slot) >= opens or max(slot) <= closes


def _minute(hour: str, minute: str) -> int | None:
    hours, minutes = int(hour), int(minute)
    if (hours, minutes) == (24, 0):
        return _LAST_MINUTE
    return hours * 60 + minutes if hours < 24 and minutes < 60 else None


def _written(text: str) -> int | None:
    try:
        hours, minutes = (int(part) for part in text.split(":"))
    except ValueError:
        return None
    return hours * 60 + minutes
