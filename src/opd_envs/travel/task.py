"""A generated task in a row's `reward_model.ground_truth`: a question, or a trip to plan."""

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from opd_envs.scoring import Record, read_task
from opd_envs.travel.entries import Mode


class Question(Record):
    """A question with one right answer, which the database of the episode gives (`opd_envs.travel.answers`)."""

    kind: Literal["question"] = "question"
    about: Literal["price", "cheapest_hotel", "first_train"]
    city: str
    """For `first_train`, the city of departure."""
    name: str | None = None
    """Place whose price is asked."""
    min_stars: int | None = None
    """Stars of the cheapest hotel."""
    destination: str | None = None
    date: datetime.date | None = None
    """Day of the first train."""


class HardConstraints(Record):
    """The traveller's demands; an unset field is no demand. The checks have these names."""

    budget: int | None = Field(default=None, description="Highest cost of the whole trip.")
    transport_mode: Mode | None = Field(default=None, description="The only means of travel between cities.")
    hotel_min_stars: int | None = Field(default=None, description="Fewest stars of every hotel.")
    hotel_feature: str | None = Field(default=None, description="Feature of every hotel.")
    hotel_max_price: int | None = Field(default=None, description="Highest price of a room and night.")
    must_visit: tuple[str, ...] | None = Field(default=None, description="Sights that must be in the plan.")
    cuisine: str | None = Field(default=None, description="At least one meal is of this cuisine.")
    arrive_by: str | None = Field(default=None, description="Latest arrival in the first destination, HH:MM.")

    def asked(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each demand, in the order of the fields."""
        return ((name, value) for name, value in self if value is not None)


class Trip(Record):
    """A trip to plan."""

    kind: Literal["trip"] = "trip"
    origin: str
    destinations: tuple[str, ...]
    """Cities in the order of the visit; for a day in one's own city, the origin alone."""
    start_date: datetime.date
    num_days: int = Field(ge=1, le=14)
    num_people: int = Field(ge=1, le=20)
    hard: HardConstraints = HardConstraints()


Task = Question | Trip
ADAPTER: TypeAdapter[Task] = TypeAdapter(Annotated[Task, Field(discriminator="kind")])


def parse_task(text: str) -> Task:
    """Parse a generated task (`read_task`)."""
    return read_task(text, ADAPTER, made_by="opd_envs.travel.prepare")
