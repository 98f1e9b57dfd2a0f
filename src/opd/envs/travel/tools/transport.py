"""Searching flights and trains between two cities on a day."""

from functools import partial
from typing import Any

from pydantic import Field

from opd.agent.toolset import Arguments, Tool
from opd.envs.travel.database import Database
from opd.envs.travel.entries import Mode, clock
from opd.envs.travel.tools.common import CityName, Date, Price, bounded, find_city


class TripSearch(Arguments):
    """Arguments of both searches."""

    origin: CityName
    destination: CityName
    date: Date
    max_price: Price | None = Field(default=None, description="Highest price per person.")


def _search(mode: Mode, database: Database, arguments: TripSearch) -> dict[str, Any]:
    origin = find_city(database, "origin", arguments.origin)
    destination = find_city(database, "destination", arguments.destination)
    trips = [
        trip
        for trip in database.trips(origin, destination, mode)
        if trip.runs_on(arguments.date.weekday()) and (arguments.max_price is None or trip.price <= arguments.max_price)
    ]
    trips.sort(key=lambda trip: (trip.departs, trip.number))
    results = [
        {"number": trip.number, "departs": clock(trip.departs), "arrives": clock(trip.arrives), "price": trip.price}
        for trip in trips
    ]
    return bounded(f"{mode}s", results)


SEARCH_FLIGHTS = Tool(
    "search_flights",
    "Direct flights from one city to another on a day, by departure; prices are per person.",
    TripSearch,
    partial(_search, "flight"),
)
SEARCH_TRAINS = Tool(
    "search_trains",
    "Direct trains from one city to another on a day, by departure; prices are per person.",
    TripSearch,
    partial(_search, "train"),
)
