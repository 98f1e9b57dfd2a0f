"""The plan in a model's text: the last `<plan>`, parsed and bounded."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from opd_envs.scoring import find_plan, read_plan
from opd_envs.travel.entries import minutes_of


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


Minutes = Annotated[int, BeforeValidator(lambda value: minutes_of(value) if isinstance(value, str) else value)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Activity(_Part):
    """One thing done on a day: a trip by its number, a sight or a restaurant by its name."""

    type: Literal["train", "flight", "attraction", "meal"]
    name: Name
    start: Minutes
    end: Minutes
    """In minutes from midnight; HH:MM in the text."""


class Day(_Part):
    """One day."""

    day: int
    activities: tuple[Activity, ...] = Field(max_length=30)
    hotel: Name | None = None


class Plan(_Part):
    """A whole plan."""

    days: tuple[Day, ...] = Field(min_length=1, max_length=31)
    total_cost: int


def parse_plan(text: str) -> Plan:
    """Return the plan in the last `<plan>` block.

    Raises:
        PlanError: no block, no JSON, or another form.
    """
    return read_plan(Plan, find_plan(text))
