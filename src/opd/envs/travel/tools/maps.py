"""Distances: between two cities, and between two places of one city with the time to get from one to the other."""

from typing import Any

from opd.agent.toolset import Arguments, Tool
from opd.envs.travel.database import Database
from opd.envs.travel.geography import city_distance_km, place_distance_m, transfer_minutes
from opd.envs.travel.tools.common import CityName, PlaceName, find_city, find_place


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
