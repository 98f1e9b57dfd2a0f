"""Searching hotels, restaurants and attractions of a city, cheapest first."""

from collections.abc import Callable
from typing import Any

from pydantic import Field

from opd.agent.toolset import Arguments, Tool
from opd.envs.travel.database import Database
from opd.envs.travel.entries import Place, PlaceKind, clock
from opd.envs.travel.tools.common import CityName, Price, bounded, find_city


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
