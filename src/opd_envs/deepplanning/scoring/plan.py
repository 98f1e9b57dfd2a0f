"""Form of a scored plan: the benchmark's converted plans have it."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

MINUTES_PER_DAY = 24 * 60
_CLOCK = r"([0-9]{1,2}):([0-9]{2})"
_SLOT = re.compile(rf"\s*{_CLOCK}\s*-\s*{_CLOCK}")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2})")
_LAST_MINUTE = MINUTES_PER_DAY - 1


class Slot(NamedTuple):
    """Start and end in minutes from midnight; an end before the start is on the next day."""

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
    """Return H:MM as minutes from midnight, 24:00 as the day's last minute; None for any other text."""
    found = _TIME.fullmatch(text.strip())
    return None if found is None else _minute(found[1], found[2])


def slot_of(text: str) -> Slot | None:
    """Return the `HH:MM-HH:MM` at the beginning of a text; None where there is none. 24:00 is the day's last minute."""
    found = _SLOT.match(text)
    if found is None:
        return None
    start, end = _minute(found[1], found[2]), _minute(found[3], found[4])
    return None if start is None or end is None else Slot(start, end)


def stated_minutes(text: str) -> tuple[int | None, int | None]:
    """Return start and end as written, each for itself: 24:00 is 1440. The rules on coverage read times like this."""
    parts = text.split("-")
    return (_written(parts[0]), _written(parts[1])) if len(parts) > 1 else (None, None)


def within(slot: Slot, opens: int, closes: int) -> bool:
    """Return whether a slot is in opening hours, which cross midnight where they close before they open."""
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


HOTEL, ATTRACTION, MEAL, TRAVEL_CITY, INTERCITY, BUFFER = (
    "hotel", "attraction", "meal", "travel_city", "travel_intercity_public", "buffer",
)  # fmt: skip
MAX_TEXT_CHARS = 300


def _stripped(value: Any) -> Any:
    if value is None:
        return ""
    return str(value).strip() if isinstance(value, str | int | float) else value


Text = Annotated[str, BeforeValidator(_stripped), Field(max_length=MAX_TEXT_CHARS)]
Cost = int | float | Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None
"""As stated: the rules on prices take numbers only, the sums also a number in a text."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True)


class Details(_Part):
    """Facts of an activity; its type decides which fields count."""

    name: Text = ""
    mode: Text = ""
    number: Text = ""
    origin: Text = Field(default="", alias="from")
    destination: Text = Field(default="", alias="to")
    cost: Cost = None


class Activity(_Part):
    """A line of a day."""

    type: Text = ""
    time_slot: Text = ""
    details: Annotated[Details, BeforeValidator(lambda value: {} if value is None else value)] = Details()

    @property
    def slot(self) -> Slot | None:
        """The time slot; None where the text is none."""
        return slot_of(self.time_slot)


class Stay(_Part):
    """The accommodation of a night."""

    name: Text = ""
    price: Cost = Field(default=None, validation_alias=AliasChoices("price_per_night", "price", "cost"))


class Day(_Part):
    """One day."""

    current_city: Text = ""
    accommodation: Stay | Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = None
    activities: Annotated[
        tuple[Activity, ...], BeforeValidator(lambda value: () if value is None else value), Field(max_length=100)
    ] = ()

    def of(self, activity_type: str) -> Iterator[Activity]:
        """Yield the activities of a type, in the plan's order."""
        return (activity for activity in self.activities if activity.type == activity_type)

    @property
    def stay(self) -> Stay | None:
        """The accommodation, where it is an object with a field."""
        stay = self.accommodation
        return stay if isinstance(stay, Stay) and stay.model_fields_set else None


class _Budget(_Part):
    total_estimated_budget: Cost = None


class Plan(_Part):
    """A whole plan."""

    days: tuple[Day, ...] = Field(alias="daily_plans", min_length=1, max_length=31)
    budget_summary: _Budget | None = None

    @property
    def total(self) -> float | None:
        """The stated total; None where it is no number."""
        return None if self.budget_summary is None else amount(self.budget_summary.total_estimated_budget)

    def of(self, activity_type: str) -> Iterator[Activity]:
        """Yield the activities of a type on all days."""
        return (activity for day in self.days for activity in day.of(activity_type))


def amount(cost: Cost) -> float | None:
    """Return a stated cost as a number; None where it is none."""
    try:
        value = float(cost)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
