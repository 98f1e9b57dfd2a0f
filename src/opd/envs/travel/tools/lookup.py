"""Looking one place up by its name: its price, and when it is open."""

from typing import Any

from pydantic import Field

from opd.agent.toolset import Arguments, Tool
from opd.envs.travel.database import Database
from opd.envs.travel.entries import NEVER_CLOSED, WEEKDAYS, clock
from opd.envs.travel.tools.common import CityName, Date, PlaceName, find_city, find_place


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
