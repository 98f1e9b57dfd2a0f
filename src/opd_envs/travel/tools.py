"""The travel tools: `TOOLS` is the set that the model is offered, in the order of its prompt."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field, model_validator

from opd.agent.tools import Arguments, BadArguments, Tool, shown
from opd_envs import LANGUAGES
from opd_envs.travel.database import Database
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
"""Entries of a search; the reply counts the entries left out."""
_MAX_ITEMS = 100

CityName = Annotated[str, Field(max_length=80, description="City.")]
PlaceName = Annotated[str, Field(max_length=120, description="Exact name as a search gives it.")]
Date = Annotated[
    datetime.date, Field(description="Day as YYYY-MM-DD.", json_schema_extra={"type": "string", "format": "date"})
]
Price = Annotated[int, Field(ge=0, le=10_000_000)]
Quantity = Annotated[int, Field(ge=0, le=10_000)]
Answer = dict[str, Any]


def find_city(database: Database, argument: str, name: str) -> City:
    """Return the city of a name.

    Raises:
        BadArguments: there is none; the message has similar names.
    """
    city = database.city(name.strip())
    if city is not None:
        return city
    known = [found.name for language in LANGUAGES for found in database.cities(language)]
    raise BadArguments(f"{argument} = {shown(name)}: there is no such city{_alike(name, known)}")


def find_place(database: Database, city: City, argument: str, name: str) -> Place:
    """Return the entry of a name in the city.

    Raises:
        BadArguments: there is none; the message has similar names.
    """
    place = database.place(city, name.strip())
    if place is not None:
        return place
    known = [found.name for kind in PLACE_KINDS for found in database.places(city, kind)]
    raise BadArguments(f"{argument} = {shown(name)}: {city.name} has no such place{_alike(name, known)}")


def _alike(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name[:80], known, n=3)
    return f"; similar: {', '.join(close)}" if close else "; use the exact name"


def _bounded(key: str, results: list[Answer]) -> Answer:
    reply: Answer = {key: results[:MAX_RESULTS]}
    if len(results) > MAX_RESULTS:
        reply["num_left_out"] = len(results) - MAX_RESULTS
    return reply


class CityPair(Arguments):
    """Arguments of `city_distance`."""

    origin: CityName
    destination: CityName


class TripSearch(CityPair):
    """Arguments of `search_flights` and `search_trains`."""

    date: Date
    max_price: Price | None = Field(default=None, description="Highest price per person.")


def _ends(database: Database, pair: CityPair) -> list[City]:
    return [find_city(database, name, getattr(pair, name)) for name in ("origin", "destination")]


def _search_trips(mode: Mode, database: Database, arguments: TripSearch) -> Answer:
    origin, destination = _ends(database, arguments)
    trips = [
        trip
        for trip in database.trips(origin, destination, mode)
        if trip.runs_on(arguments.date.weekday()) and _within(trip.price, arguments.max_price)
    ]
    results = [
        {"number": trip.number, "departs": clock(trip.departs), "arrives": clock(trip.arrives), "price": trip.price}
        for trip in sorted(trips, key=lambda trip: (trip.departs, trip.number))
    ]
    return _bounded(f"{mode}s", results)


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


def _search_places(
    kind: PlaceKind,
    matches: Callable[[Any, Place], bool],
    shows: Callable[[Place], Answer],
    database: Database,
    wanted: Any,
) -> Answer:
    """Return the city's places of a kind that match and cost no more than wanted, cheapest first."""
    city = find_city(database, "city", wanted.city)
    found = [p for p in database.places(city, kind) if _within(p.price, wanted.max_price) and matches(wanted, p)]
    found.sort(key=lambda place: (place.price, place.name))
    return _bounded(f"{kind}s", [shows(place) for place in found])


def _within(price: int, limit: int | None) -> bool:
    return limit is None or price <= limit


def _same(wanted: str | None, *offered: str) -> bool:
    return wanted is None or wanted.strip().casefold() in {option.casefold() for option in offered}


def _hours(place: Place) -> dict[str, str]:
    return {"opens": clock(place.opens), "closes": clock(place.closes)}


_search_hotels = partial(
    _search_places,
    "hotel",
    lambda wanted, hotel: hotel.stars >= (wanted.min_stars or 0) and _same(wanted.feature, *hotel.features),
    lambda hotel: {"name": hotel.name, "stars": hotel.stars, "price": hotel.price, "features": list(hotel.features)},
)
_search_restaurants = partial(
    _search_places,
    "restaurant",
    lambda wanted, place: _same(wanted.cuisine, place.category),
    lambda place: {"name": place.name, "cuisine": place.category, "price": place.price, **_hours(place)},
)
_search_attractions = partial(
    _search_places,
    "attraction",
    lambda wanted, place: _same(wanted.category, place.category),
    lambda place: {
        **{"name": place.name, "category": place.category, "price": place.price, **_hours(place)},
        "visit_minutes": place.visit_minutes,
    },
)


class PlaceLookup(Arguments):
    """Arguments of `get_price`."""

    city: CityName
    name: PlaceName


class HoursLookup(PlaceLookup):
    """Arguments of `get_opening_hours`."""

    date: Date | None = Field(default=None, description="Also say whether it is open on this day (YYYY-MM-DD).")


def _get_price(database: Database, arguments: PlaceLookup) -> Answer:
    city = find_city(database, "city", arguments.city)
    return {"price": find_place(database, city, "name", arguments.name).price}


def _get_opening_hours(database: Database, arguments: HoursLookup) -> Answer:
    city = find_city(database, "city", arguments.city)
    place = find_place(database, city, "name", arguments.name)
    closed = None if place.closed_weekday == NEVER_CLOSED else WEEKDAYS[city.language][place.closed_weekday]
    reply: Answer = {**_hours(place), "closed_on": closed}
    if arguments.date is not None:
        reply["open_that_day"] = arguments.date.weekday() != place.closed_weekday
    return reply


class PlacePair(Arguments):
    """Arguments of `place_distance`."""

    city: CityName
    origin: PlaceName
    destination: PlaceName


def _city_distance(database: Database, arguments: CityPair) -> Answer:
    origin, destination = _ends(database, arguments)
    return {"km": city_distance_km(origin, destination)}


def _place_distance(database: Database, arguments: PlacePair) -> Answer:
    city = find_city(database, "city", arguments.city)
    origin = find_place(database, city, "origin", arguments.origin)
    destination = find_place(database, city, "destination", arguments.destination)
    metres = place_distance_m(origin, destination)
    return {"km": round(metres / 1000, 1), "minutes": transfer_minutes(origin, destination)}


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


def _add_costs(_: Database, arguments: CostList) -> Answer:
    quantities = arguments.quantities or [1] * len(arguments.prices)
    total = sum(price * quantity for price, quantity in zip(arguments.prices, quantities, strict=True))
    return {"total": total} | ({} if arguments.budget is None else {"left": arguments.budget - total})


_HOTELS = "Hotels of a city, cheapest first; prices are per room and night, a room sleeps two."
_RESTAURANTS = "Restaurants of a city, cheapest first; prices are per person."
_SIGHTS = "Sights of a city, cheapest first; prices are per person."
_PRICE = "Price of one hotel (room and night), restaurant (person) or sight (person)."
_HOURS = "Opening hours of one place and the weekday it is closed."
_WAY = "Distance between two places of a city in km, and the minutes it takes."
_COSTS = "Total of prices times quantities, and what is left of a budget."
_TRIPS = "Direct {}s from one city to another on a day, by departure; prices are per person."
_TOOLS: dict[str, tuple[str, type[Arguments], Callable[[Database, Any], Answer]]] = {
    "search_flights": (_TRIPS.format("flight"), TripSearch, partial(_search_trips, "flight")),
    "search_trains": (_TRIPS.format("train"), TripSearch, partial(_search_trips, "train")),
    "search_hotels": (_HOTELS, HotelSearch, _search_hotels),
    "search_restaurants": (_RESTAURANTS, RestaurantSearch, _search_restaurants),
    "search_attractions": (_SIGHTS, AttractionSearch, _search_attractions),
    "get_price": (_PRICE, PlaceLookup, _get_price),
    "get_opening_hours": (_HOURS, HoursLookup, _get_opening_hours),
    "city_distance": ("Distance between two cities in km.", CityPair, _city_distance),
    "place_distance": (_WAY, PlacePair, _place_distance),
    "add_costs": (_COSTS, CostList, _add_costs),
}
TOOLS: dict[str, Tool] = {name: Tool(name, *given) for name, given in _TOOLS.items()}
