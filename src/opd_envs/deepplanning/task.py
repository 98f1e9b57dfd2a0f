"""A query of the benchmark as it travels in a row's `reward_model.ground_truth`: a trip to plan, or a cart to fill."""

from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter

from opd_envs.travel.task import Record, read_task

EntryKind = Literal["train", "flight", "hotel", "restaurant", "attraction"]


def entry_kind(constraint: str) -> EntryKind | None:
    """Return the kind of entry that a published constraint names, by its first word; None for another word."""
    word = constraint.partition("_")[0]
    return word if word in get_args(EntryKind) else None  # type: ignore[return-value]


class BenchmarkFacts(Record):
    """Facts of a travel query that the benchmark's rules need besides its constraints."""

    origin: str
    num_people: int = Field(ge=1)
    num_rooms: int = Field(ge=1)
    depart_weekday: int | None = Field(default=None, ge=1, le=7)
    """1: Monday."""


class BenchmarkTrip(Record):
    """A DeepPlanning travel query: what its published constraints name must be in the plan."""

    kind: Literal["benchmark_trip"] = "benchmark_trip"
    num_days: int = Field(ge=1)
    max_budget: float | None = None
    required_names: dict[str, tuple[str, ...]] = Field(default={})
    """By the name of the published constraint: entries of which every one must be in the plan."""
    facts: BenchmarkFacts


class BenchmarkCart(Record):
    """A DeepPlanning shopping query: what the right cart holds."""

    kind: Literal["benchmark_cart"] = "benchmark_cart"
    product_ids: tuple[str, ...]
    coupons: dict[str, int] = Field(default={})
    """Number by name."""


Task = BenchmarkTrip | BenchmarkCart
_ADAPTER: TypeAdapter[Task] = TypeAdapter(Annotated[Task, Field(discriminator="kind")])


def parse_task(text: str) -> Task:
    """`read_task` of a query."""
    return read_task(text, _ADAPTER, made_by="opd_envs.deepplanning.prepare")
