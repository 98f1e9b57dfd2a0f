"""The form of a plan that is scored: that of the benchmark's converted plans."""

import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from opd.envs.deepplanning.scoring.clock import Slot, slot_of

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
    """What an activity is about; which fields count depends on its type."""

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
        """The time slot, where it is one."""
        return slot_of(self.time_slot)


class Stay(_Part):
    """Where a night is spent."""

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
        """The activities of a type, in the plan's order."""
        return (activity for activity in self.activities if activity.type == activity_type)

    @property
    def stay(self) -> Stay | None:
        """The accommodation, where it is an object that says anything."""
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
        """The stated total, where it is a number."""
        return None if self.budget_summary is None else amount(self.budget_summary.total_estimated_budget)

    def of(self, activity_type: str) -> Iterator[Activity]:
        """The activities of a type on all days."""
        return (activity for day in self.days for activity in day.of(activity_type))


def amount(cost: Cost) -> float | None:
    """A stated cost as a number, None where it is none."""
    try:
        value = float(cost)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
