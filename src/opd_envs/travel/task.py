"""A generated task as it travels in a row's `reward_model.ground_truth`: a question, or a trip to plan."""

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from opd_envs.travel.entries import Mode


class Record(BaseModel):
    """A part of a task: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(Record):
    """A question with one right answer, which the database of the episode gives (`opd_envs.travel.answers`)."""

    kind: Literal["question"] = "question"
    about: Literal["price", "cheapest_hotel", "first_train"]
    city: str
    """For `first_train`: where it leaves."""
    name: str | None = None
    """Of the place whose price is asked."""
    min_stars: int | None = None
    """Of the cheapest hotel."""
    destination: str | None = None
    date: datetime.date | None = None
    """Of the first train."""


class HardConstraints(Record):
    """What the traveller demands; a field that is unset is not asked for. The checks have these names."""

    budget: int | None = Field(default=None, description="Highest cost of the whole trip.")
    transport_mode: Mode | None = Field(default=None, description="The only means of travel between cities.")
    hotel_min_stars: int | None = Field(default=None, description="Fewest stars of every hotel.")
    hotel_feature: str | None = Field(default=None, description="What every hotel must have.")
    hotel_max_price: int | None = Field(default=None, description="Highest price of a room and night.")
    must_visit: tuple[str, ...] | None = Field(default=None, description="Sights that must be in the plan.")
    cuisine: str | None = Field(default=None, description="At least one meal is of this cuisine.")
    arrive_by: str | None = Field(default=None, description="Latest arrival in the first destination, HH:MM.")

    def asked(self) -> Iterator[tuple[str, Any]]:
        """Name and value of each constraint that is asked for, in the order of the fields."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is not None:
                yield name, value


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


class TaskError(ValueError):
    """A ground truth that is no task: a fault of the data, not of an answer."""


def task_text(task: Record) -> str:
    """The task as text for `reward_model.ground_truth`; what is unset is left out."""
    return task.model_dump_json(exclude_defaults=False, exclude_none=True)


T = TypeVar("T")


def read_task(text: str, adapter: TypeAdapter[T], *, made_by: str) -> T:
    """Read a ground truth as a task of one environment.

    Raises:
        TaskError: naming the field.
    """
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskError(
            f"reward_model.ground_truth: {'.'.join(map(str, first['loc']))}: {first['msg']}; it must be a task as "
            f"{made_by} writes it"
        ) from error


def parse_task(text: str) -> Task:
    """`read_task` of a generated task."""
    return read_task(text, ADAPTER, made_by="opd_envs.travel.prepare")
