"""What the tools share: types of arguments, finding a city or a place by name, and bounded lists of results."""

import datetime
import difflib
from typing import Annotated, Any

from pydantic import Field

from opd.agent.toolset import BadArguments, shown
from opd.envs.travel.database import Database
from opd.envs.travel.entries import PLACE_KINDS, City, Place

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
