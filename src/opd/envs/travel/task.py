"""What a task asks, as it travels in a row's `reward_model.ground_truth`: a question, a trip to plan, or a benchmark row."""

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from opd.envs.travel.entries import Mode


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(_Record):
    """A question with one right answer, which the database of the episode gives (`opd.envs.travel.answers`)."""

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


class HardConstraints(_Record):
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


class Trip(_Record):
    """A trip to plan."""

    kind: Literal["trip"] = "trip"
    origin: str
    destinations: tuple[str, ...]
    """Cities in the order of the visit; for a day in one's own city, the origin alone."""
    start_date: datetime.date
    num_days: int = Field(ge=1, le=14)
    num_people: int = Field(ge=1, le=20)
    hard: HardConstraints = HardConstraints()


EntryKind = Literal["train", "flight", "hotel", "restaurant", "attraction"]


def entry_kind(constraint: str) -> EntryKind | None:
    """What a published constraint is about, by the first word of its name; None where that is none of the kinds."""
    word = constraint.partition("_")[0]
    return word if word in get_args(EntryKind) else None  # type: ignore[return-value]


class BenchmarkFacts(_Record):
    """What the benchmark's rules know of a travel query beside its constraints."""

    origin: str
    num_people: int = Field(ge=1)
    num_rooms: int = Field(ge=1)
    depart_weekday: int | None = Field(default=None, ge=1, le=7)
    """1: Monday."""


class BenchmarkTrip(_Record):
    """A DeepPlanning travel query: what its published constraints name must be in the plan."""

    kind: Literal["benchmark_trip"] = "benchmark_trip"
    num_days: int = Field(ge=1)
    max_budget: float | None = None
    required_names: dict[str, tuple[str, ...]] = {}
    """By the name of the published constraint: entries of which every one must be in the plan."""
    facts: BenchmarkFacts


class BenchmarkCart(_Record):
    """A DeepPlanning shopping query: what the right cart holds."""

    kind: Literal["benchmark_cart"] = "benchmark_cart"
    product_ids: tuple[str, ...]
    coupons: dict[str, int] = {}
    """Number by name."""


Task = Question | Trip | BenchmarkTrip | BenchmarkCart
_ADAPTER: TypeAdapter[Task] = TypeAdapter(Annotated[Task, Field(discriminator="kind")])


class TaskError(ValueError):
    """A ground truth that is no task: a fault of the data, not of an answer."""


def task_text(task: Task) -> str:
    """The task as text for `reward_model.ground_truth`; what is unset is left out."""
    return task.model_dump_json(exclude_defaults=False, exclude_none=True)


def parse_task(text: str) -> Task:
    """The task of a ground truth.

    Raises:
        TaskError: naming the field.
    """
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskError(
            f"reward_model.ground_truth: {'.'.join(map(str, first['loc']))}: {first['msg']}; it must be a task as "
            "opd.data.prepare_agent_data writes it"
        ) from error
