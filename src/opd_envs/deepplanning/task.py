"""A DeepPlanning travel query in a row's `reward_model.ground_truth`."""

from typing import Literal, get_args

from pydantic import Field, TypeAdapter

from opd_envs.scoring import Record, read_task

EntryKind = Literal["train", "flight", "hotel", "restaurant", "attraction"]


def entry_kind(constraint: str) -> EntryKind | None:
    """Return the kind of entry that a published constraint names, by its first word; None for another word."""
    word = constraint.partition("_")[0]
    return word if word in get_args(EntryKind) else None  # type: ignore[return-value]


class BenchmarkTrip(Record):
    """A query: its trip, and the entries that its published constraints name."""

    kind: Literal["benchmark_trip"] = "benchmark_trip"
    origin: str
    num_days: int = Field(ge=1)
    num_people: int = Field(default=1, ge=1)
    num_rooms: int = Field(default=1, ge=1)
    depart_weekday: int | None = Field(default=None, ge=1, le=7)
    """1 means Monday."""
    max_budget: float | None = None
    required_names: dict[str, tuple[str, ...]] = Field(default={})
    """Entries by the name of the published constraint; the plan must name each of them."""


_ADAPTER = TypeAdapter(BenchmarkTrip)


def parse_task(text: str) -> BenchmarkTrip:
    """Parse a query (`read_task`)."""
    return read_task(text, _ADAPTER, made_by="opd_envs.deepplanning.prepare")
