"""Distances on the map and the time a transfer takes: one rule for the tools that tell it and the checks that hold it."""

import math

from opd.envs.travel.entries import City, Place

_TAXI_M_PER_MINUTE = 500
"""30 km/h: a taxi in city traffic."""
_TRANSFER_OVERHEAD_MINUTES = 5


def city_distance_km(origin: City, destination: City) -> int:
    """The straight line between two cities in whole kilometres."""
    return round(math.hypot(origin.x_km - destination.x_km, origin.y_km - destination.y_km))


def place_distance_m(origin: Place, destination: Place) -> int:
    """The straight line between two places of one city in whole metres."""
    return round(math.hypot(origin.x_m - destination.x_m, origin.y_m - destination.y_m))


def transfer_minutes(origin: Place, destination: Place) -> int:
    """Minutes from one place of a city to another by taxi, waiting included; 0 within the same place."""
    if (origin.kind, origin.id) == (destination.kind, destination.id):
        return 0
    return _TRANSFER_OVERHEAD_MINUTES + math.ceil(place_distance_m(origin, destination) / _TAXI_M_PER_MINUTE)
