"""The travel tools: `TOOLS` is the set that the model is offered, in the order of its prompt."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field, model_validator

from opd.agent.tools import Arguments, BadArguments, Tool, shown
from opd_envs.travel.database import Database, open_database
from opd_envs.travel.database import verify_folder as verify_database
from opd_envs.travel.entries import (
    NEVER_CLOSED,
    PLACE_KINDS,
    WEEKDAYS,
    City,
    Mode,
    Place,
    PlaceKind,
    city_distance_km,
    clock,
    place_distance_m,
    transfer_minutes,
)

MAX_RESULTS = 10
"""Entries a search returns; what is left out is counted in the reply."""

CityName = Annotated[str, Field(max_length=80, description="City.")]
PlaceName = Annotated[str, Field(max_length=120, description="Exact name as a search gives it.")]
Date = Annotated[
    datetime.date, Field(description="Day as YYYY-MM-DD.", json_schema_extra={"type": "string", "format": "date"})
]
Price = Annotated[int, Field(ge=0, le=10_000_000)]


def find_city(database: Database, argument: str, name: str) -> City:
    """The city of that name; BadArguments, with names that look alike, where there is none."""
    city = database.city(name.strip())
    if city is not None:
        return city
    known = [found.name for language in ("en", "zh") for found in database.cities(language)]
    raise BadArguments(f"{argument} = {shown(name)}: there is no such city{_alike(name, known)}")


def find_place(database: Database, city: City, argument: str, name: str) -> Place:
    """The entry of that name in the city; BadArguments, with names that look alike, where there is none."""
    place = database.place(city, name.strip())
    if place is not None:
        return place
    known = [found.name for kind in PLACE_KINDS for found in database.places(city, kind)]
    raise BadArguments(f"{argument} = {shown(name)}: {city.name} has no such place{_alike(name, known)}")


def bounded(key: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """The first `MAX_RESULTS` results under `key`, with the number of those left out where there are any."""
    reply: dict[str, Any] = {key: results[:MAX_RESULTS]}
    if len(results) > MAX_RESULTS:
        reply["num_left_out"] = len(results) - MAX_RESULTS
    return reply


def _alike(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name[:80], known, n=3)
    return f"; similar: {', '.join(close)}" if close else "; use the exact name"


Quantity = Annotated[int, Field(ge=0, le=10_000)]
_MAX_ITEMS = 100


class CostList(Arguments):
    """Arguments of `add_costs`."""

    prices: list[Price] = Field(max_length=_MAX_ITEMS, description="Prices to add.")
    quantities: list[Quantity] | None = Field(
        default=None, max_length=_MAX_ITEMS, description="How often each price is paid, in the same order; default 1."
    )
    budget: Price | None = Field(default=None, description="Budget to compare with.")

    @model_validator(mode="after")
    def _same_length(self) -> CostList:
        if self.quantities is not None and len(self.quantities) != len(self.prices):
            raise ValueError(
                f"quantities has {len(self.quantities)} entries and prices {len(self.prices)}: give one for each price"
            )
        return self


def _add_costs(_: Database, arguments: CostList) -> dict[str, Any]:
    quantities = arguments.quantities or [1] * len(arguments.prices)
    total = sum(price * quantity for price, quantity in zip(arguments.prices, quantities, strict=True))
    reply: dict[str, Any] = {"total": total}
    if arguments.budget is not None:
        reply["left"] = arguments.budget - total
    return reply


ADD_COSTS = Tool("add_costs", "Total of prices times quantities, and what is left of a budget.", CostList, _add_costs)


class PlaceLookup(Arguments):
    """Arguments of `get_price`."""

    city: CityName
    name: PlaceName


class HoursLookup(PlaceLookup):
    """Arguments of `get_opening_hours`."""

    date: Date | None = Field(default=None, description="Also say whether it is open on this day (YYYY-MM-DD).")


def _get_price(database: Database, arguments: PlaceLookup) -> dict[str, Any]:
    city = find_city(database, "city", arguments.city)
    return {"price": find_place(database, city, "name", arguments.name).price}


def _get_opening_hours(database: Database, arguments: HoursLookup) -> dict[str, Any]:
    city = find_city(database, "city", arguments.city)
    place = find_place(database, city, "name", arguments.name)
    closed = None if place.closed_weekday == NEVER_CLOSED else WEEKDAYS[city.language][place.closed_weekday]
    reply: dict[str, Any] = {"opens": clock(place.opens), "closes": clock(place.closes), "closed_on": closed}
    if arguments.date is not None:
        reply["open_that_day"] = arguments.date.weekday() != place.closed_weekday
    return reply


GET_PRICE = Tool(
    "get_price",
    "Price of one hotel (room and night), restaurant (person) or sight (person).",
    PlaceLookup,
    _get_price,
)
GET_OPENING_HOURS = Tool(
    "get_opening_hours", "Opening hours of one place and the weekday it is closed.", HoursLookup, _get_opening_hours
)


class CityPair(Arguments):
    """Arguments of `city_distance`."""

    origin: CityName
    destination: CityName


class PlacePair(Arguments):
    """Arguments of `place_distance`."""

    city: CityName
    origin: PlaceName
    destination: PlaceName


def _city_distance(database: Database, arguments: CityPair) -> dict[str, Any]:
    origin = find_city(database, "origin", arguments.origin)
    destination = find_city(database, "destination", arguments.destination)
    return {"km": city_distance_km(origin, destination)}


def _place_distance(database: Database, arguments: PlacePair) -> dict[str, Any]:
    city = find_city(database, "city", arguments.city)
    origin = find_place(database, city, "origin", arguments.origin)
    destination = find_place(database, city, "destination", arguments.destination)
    return {
        "km": round(place_distance_m(origin, destination) / 1000, 1),
        "minutes": transfer_minutes(origin, destination),
    }


CITY_DISTANCE = Tool("city_distance", "Distance between two cities in km.", CityPair, _city_distance)
PLACE_DISTANCE = Tool(
    "place_distance",
    "Distance between two places of a city in km, and the minutes it takes.",
    PlacePair,
    _place_distance,
)


class HotelSearch(Arguments):
    """Arguments of `search_hotels`."""

    city: CityName
    min_stars: int | None = Field(default=None, ge=1, le=5, description="Fewest stars.")
    max_price: Price | None = Field(default=None, description="Highest price of a room for a night.")
    feature: str | None = Field(default=None, max_length=40, description="Feature it must have, such as breakfast.")


class RestaurantSearch(Arguments):
    """Arguments of `search_restaurants`."""

    city: CityName
    cuisine: str | None = Field(default=None, max_length=40, description="Cuisine, such as hotpot.")
    max_price: Price | None = Field(default=None, description="Highest price per person.")


class AttractionSearch(Arguments):
    """Arguments of `search_attractions`."""

    city: CityName
    category: str | None = Field(default=None, max_length=40, description="Kind, such as Museum.")
    max_price: Price | None = Field(default=None, description="Highest price of a ticket.")


def _matches(wanted: str | None, offered: str | tuple[str, ...]) -> bool:
    if wanted is None:
        return True
    options = (offered,) if isinstance(offered, str) else offered
    return wanted.strip().casefold() in {option.casefold() for option in options}


def _cheapest_first(
    database: Database,
    kind: PlaceKind,
    arguments: HotelSearch | RestaurantSearch | AttractionSearch,
    matches: Callable[[Place], bool],
) -> list[Place]:
    """The places of a kind in the city that the arguments name that match and cost no more than they allow."""
    city = find_city(database, "city", arguments.city)
    limit = arguments.max_price
    found = [
        place for place in database.places(city, kind) if (limit is None or place.price <= limit) and matches(place)
    ]
    return sorted(found, key=lambda place: (place.price, place.name))


def _opening_hours(place: Place) -> dict[str, str]:
    return {"opens": clock(place.opens), "closes": clock(place.closes)}


def _search_hotels(database: Database, arguments: HotelSearch) -> dict[str, Any]:
    def matches(hotel: Place) -> bool:
        return hotel.stars >= (arguments.min_stars or 0) and _matches(arguments.feature, hotel.features)

    results = [
        {"name": hotel.name, "stars": hotel.stars, "price": hotel.price, "features": list(hotel.features)}
        for hotel in _cheapest_first(database, "hotel", arguments, matches)
    ]
    return bounded("hotels", results)


def _search_restaurants(database: Database, arguments: RestaurantSearch) -> dict[str, Any]:
    found = _cheapest_first(
        database, "restaurant", arguments, lambda place: _matches(arguments.cuisine, place.category)
    )
    results = [
        {"name": place.name, "cuisine": place.category, "price": place.price, **_opening_hours(place)}
        for place in found
    ]
    return bounded("restaurants", results)


def _search_attractions(database: Database, arguments: AttractionSearch) -> dict[str, Any]:
    found = _cheapest_first(
        database, "attraction", arguments, lambda place: _matches(arguments.category, place.category)
    )
    results = [
        {
            "name": place.name,
            "category": place.category,
            "price": place.price,
            **_opening_hours(place),
            "visit_minutes": place.visit_minutes,
        }
        for place in found
    ]
    return bounded("attractions", results)


SEARCH_HOTELS = Tool(
    "search_hotels",
    "Hotels of a city, cheapest first; prices are per room and night, a room sleeps two.",
    HotelSearch,
    _search_hotels,
)
SEARCH_RESTAURANTS = Tool(
    "search_restaurants",
    "Restaurants of a city, cheapest first; prices are per person.",
    RestaurantSearch,
    _search_restaurants,
)
SEARCH_ATTRACTIONS = Tool(
    "search_attractions",
    "Sights of a city, cheapest first; prices are per person.",
    AttractionSearch,
    _search_attractions,
)


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


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        SEARCH_FLIGHTS,
        SEARCH_TRAINS,
        SEARCH_HOTELS,
        SEARCH_RESTAURANTS,
        SEARCH_ATTRACTIONS,
        GET_PRICE,
        GET_OPENING_HOURS,
        CITY_DISTANCE,
        PLACE_DISTANCE,
        ADD_COSTS,
    )
}

__all__ = ["TOOLS", "open_database", "verify_database"]
