"""Searching hotels, restaurants and attractions of a city, cheapest first."""

from typing import Any

from pydantic import Field

from opd.agent.database import Database
from opd.agent.entries import Place, clock
from opd.agent.tools.common import CityName, Price, bounded, find_city
from opd.agent.tools.registry import Arguments, Tool


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


def _affordable(max_price: int | None, place: Place) -> bool:
    return max_price is None or place.price <= max_price


def _cheapest_first(places: list[Place]) -> list[Place]:
    return sorted(places, key=lambda place: (place.price, place.name))


def _search_hotels(database: Database, arguments: HotelSearch) -> dict[str, Any]:
    city = find_city(database, "city", arguments.city)
    found = [
        hotel
        for hotel in database.places(city, "hotel")
        if hotel.stars >= (arguments.min_stars or 0)
        and _affordable(arguments.max_price, hotel)
        and _matches(arguments.feature, hotel.features)
    ]
    results = [
        {"name": hotel.name, "stars": hotel.stars, "price": hotel.price, "features": list(hotel.features)}
        for hotel in _cheapest_first(found)
    ]
    return bounded("hotels", results)


def _search_restaurants(database: Database, arguments: RestaurantSearch) -> dict[str, Any]:
    city = find_city(database, "city", arguments.city)
    found = [
        place
        for place in database.places(city, "restaurant")
        if _affordable(arguments.max_price, place) and _matches(arguments.cuisine, place.category)
    ]
    results = [
        {
            "name": place.name,
            "cuisine": place.category,
            "price": place.price,
            "opens": clock(place.opens),
            "closes": clock(place.closes),
        }
        for place in _cheapest_first(found)
    ]
    return bounded("restaurants", results)


def _search_attractions(database: Database, arguments: AttractionSearch) -> dict[str, Any]:
    city = find_city(database, "city", arguments.city)
    found = [
        place
        for place in database.places(city, "attraction")
        if _affordable(arguments.max_price, place) and _matches(arguments.category, place.category)
    ]
    results = [
        {
            "name": place.name,
            "category": place.category,
            "price": place.price,
            "opens": clock(place.opens),
            "closes": clock(place.closes),
            "visit_minutes": place.visit_minutes,
        }
        for place in _cheapest_first(found)
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
