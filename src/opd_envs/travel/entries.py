"""The records of every table of the database, as the generator makes them and tools and constraints read them."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from opd_envs import Language

Mode = Literal["train", "flight"]
PlaceKind = Literal["hotel", "restaurant", "attraction"]
PLACE_KINDS: tuple[PlaceKind, ...] = ("hotel", "restaurant", "attraction")

WEEKDAYS: Mapping[Language, tuple[str, ...]] = {
    "en": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "zh": ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日"),
}
MINUTES_PER_DAY = 24 * 60
NEVER_CLOSED = -1


class City(NamedTuple):
    """A city on a flat map."""

    id: int
    language: Language
    """Of `name`, and so of everything that is read about the city."""
    name: str
    x_km: int
    y_km: int


class Place(NamedTuple):
    """A hotel, restaurant or attraction: a name in a city, a position and a price."""

    kind: PlaceKind
    id: int
    city_id: int
    name: str
    x_m: int
    y_m: int
    """Position within the city, in metres."""
    price: int
    """Per room and night (hotel), per person and meal (restaurant), per person (attraction)."""
    category: str = ""
    """Cuisine of a restaurant, kind of an attraction; empty for a hotel."""
    stars: int = 0
    """Of a hotel, 2 to 5; else 0."""
    features: tuple[str, ...] = ()
    """Of a hotel; else empty."""
    opens: int = 0
    closes: int = MINUTES_PER_DAY
    """In minutes from midnight; hotels never close."""
    closed_weekday: int = NEVER_CLOSED
    """0 = Monday ... 6 = Sunday, or `NEVER_CLOSED`."""
    visit_minutes: int = 0
    """The shortest visit of an attraction that is one; else 0."""


class Trip(NamedTuple):
    """A train or flight that leaves and arrives on the same day."""

    mode: Mode
    id: int
    number: str
    from_city_id: int
    to_city_id: int
    departs: int
    arrives: int
    """In minutes from midnight, departs < arrives."""
    weekdays: int
    """Bit w is set where it runs on weekday w (0 = Monday)."""
    price: int
    """Per person, one way."""

    def runs_on(self, weekday: int) -> bool:
        """Return whether it runs on a weekday (0 = Monday)."""
        return bool(self.weekdays >> weekday & 1)


def clock(minutes: int) -> str:
    """Return minutes from midnight as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def minutes_of(text: str) -> int:
    """Return HH:MM as minutes from midnight, 24:00 included.

    Raises:
        ValueError: any other text.
    """
    hours, colon, minutes = text.strip().partition(":")
    if colon and len(minutes) == 2 and len(hours) <= 2 and (hours + minutes).isascii() and (hours + minutes).isdigit():
        total = int(hours) * 60 + int(minutes)
        if int(minutes) < 60 and total <= MINUTES_PER_DAY:
            return total
    raise ValueError(f"{text[:20]!r} is not a time of day: write HH:MM, for example 09:30")


_TAXI_M_PER_MINUTE = 500
"""30 km/h: a taxi in city traffic."""
_TRANSFER_OVERHEAD_MINUTES = 5


def city_distance_km(origin: City, destination: City) -> int:
    """Return the straight line between two cities in whole kilometres."""
    return round(math.hypot(origin.x_km - destination.x_km, origin.y_km - destination.y_km))


def place_distance_m(origin: Place, destination: Place) -> int:
    """Return the straight line between two places of one city in whole metres."""
    return round(math.hypot(origin.x_m - destination.x_m, origin.y_m - destination.y_m))


def transfer_minutes(origin: Place, destination: Place) -> int:
    """Return the minutes by taxi from one place of a city to another, waiting included; 0 within the same place."""
    if (origin.kind, origin.id) == (destination.kind, destination.id):
        return 0
    return _TRANSFER_OVERHEAD_MINUTES + math.ceil(place_distance_m(origin, destination) / _TAXI_M_PER_MINUTE)
