"""The travel tools with the published names, arguments and reply keys; a tool answers as the benchmark's own.

Descriptions, and replies of calls that find nothing, are in our own words (`opd_envs.deepplanning.words`).
"""

import datetime
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, create_model

from opd.agent.tools import Arguments, BadArguments, Reply, Tool, shown
from opd_envs import Language
from opd_envs.deepplanning.database import Case
from opd_envs.deepplanning.layout import (
    ATTRACTIONS,
    DISTANCES,
    FLIGHTS,
    HOTELS,
    LOCATIONS,
    RESTAURANTS,
    TRAINS,
    Table,
)
from opd_envs.deepplanning.scoring.plan import amount
from opd_envs.deepplanning.words import DESCRIPTIONS, LABELS, Labels

Text = Annotated[str, Field(max_length=200)]
Day = Annotated[datetime.date, Field(json_schema_extra={"type": "string"})]
Row = Mapping[str, str]


def _camel(columns: str) -> dict[str, str]:
    """Return columns by their names in replies: `hotelStar` of `hotel_star`."""
    return {re.sub("_([a-z])", lambda letter: letter[1].upper(), column): column for column in columns.split()}


_SEGMENT = {
    "arrCityName": "destination_city",
    **_camel("arr_station_code arr_station_name"),
    "depCityName": "origin_city",
    **_camel("dep_station_code dep_station_name duration"),
    "arrDateTime": "arr_datetime",
    "depDateTime": "dep_datetime",
}
_TRAIN = _SEGMENT | {"marketingTransportName": "train_type", "marketingTransportNo": "train_no"}
_FLIGHT = _SEGMENT | {"marketingTransportName": "airline", "marketingTransportNo": "flight_no"}
_EQUIPMENT = _camel("equip_size equip_type manufacturer")
_HOTEL = _camel("name address latitude longitude decoration_time hotel_star price score brand")
_SAME_NAMES = "latitude longitude price_per_person cuisine opening_time closing_time nearby_attraction_name rating"
_RESTAURANT = {"name": "restaurant_name", **{name: name for name in _SAME_NAMES.split()}}
_ATTRACTION_NUMBERS = ("rating", "min_visit_hours", "max_visit_hours", "ticket_price")
_LIST_SEPARATOR = ";"


def _trains(case: Case, arguments: Any) -> Reply:
    labels = LABELS[case.language]
    routes = _routes(case, TRAINS, arguments, _TRAIN)
    for route in routes:
        segments = [segment for key, segment in route.items() if key != "price"]
        for before, segment in pairwise(segments):
            segment["depCityName"] = before["arrStationName"].split(labels.station)[0]
    return [[route] for route in routes] or _nothing(case)


def _flights(case: Case, arguments: Any) -> Reply:
    return _routes(case, FLIGHTS, arguments, _FLIGHT, _EQUIPMENT) or _nothing(case)


def _routes(
    case: Case,
    table: Table,
    arguments: Any,
    keys: Mapping[str, str],
    last_keys: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return each route's segments under the reply's own keys, and its price: the first segment's.

    Routes and segments are sorted by their index as text, as the benchmark reads it: 1, 10, 2.
    """
    wanted = {
        "origin_city": arguments.origin,
        "destination_city": arguments.destination,
        "dep_date": arguments.depDate.isoformat(),
    }
    if arguments.seatClassName:
        wanted["seat_class"] = arguments.seatClassName
    by_route: dict[str, list[dict[str, str]]] = {}
    for row in case.rows(table, **wanted):
        by_route.setdefault(row["route_index"], []).append(row)
    labels = LABELS[case.language]
    routes = []
    for index in sorted(by_route):
        segments = sorted(by_route[index], key=lambda row: row["segment_index"])
        route: dict[str, Any] = {
            labels.segment.format(number): _segment(row, labels, keys, last_keys or {})
            for number, row in enumerate(segments, start=1)
        }
        routes.append(route | {"price": amount(segments[0]["price"]) or 0.0})
    return routes


def _segment(row: Row, labels: Labels, keys: Mapping[str, str], last_keys: Mapping[str, str]) -> dict[str, Any]:
    return {
        **{key: row[column] for key, column in keys.items()},
        "duration": _whole(row["duration"]),
        "seatClassName": row["seat_class"],
        labels.seats: row["seat_status"].strip() or labels.enough,
        **{key: row[column] for key, column in last_keys.items()},
    }


def _hotels(case: Case, arguments: Any) -> Reply:
    wanted = {"hotel_star": arguments.hotelStar, "brand": arguments.hotelBrands}
    found = case.rows(HOTELS, **{column: value for column, value in wanted.items() if value})
    return [_renamed(row, _HOTEL) | _listed("services", row) for row in found] or _nothing(case)


def _attraction(case: Case, arguments: Any) -> Reply:
    row = _one(case, ATTRACTIONS, "attraction_name", arguments.attraction_name)
    return {**row, **{name: amount(row[name]) for name in _ATTRACTION_NUMBERS}}


def _attractions(case: Case, arguments: Any) -> Reply:
    wanted = {"attraction_type": arguments.attraction_type} if arguments.attraction_type else {}
    shown_columns = ("attraction_name", "description", "attraction_type")
    return [{name: row[name] for name in shown_columns} for row in case.rows(ATTRACTIONS, **wanted)] or _nothing(case)


def _location(case: Case, arguments: Any) -> Reply:
    row = _one(case, LOCATIONS, "poi_name", arguments.place_name, argument="place_name")
    return {"place_name": row["poi_name"], "latitude": row["latitude"], "longitude": row["longitude"]}


def _road(case: Case, arguments: Any) -> Reply:
    found = case.rows(DISTANCES, origin=arguments.origin, destination=arguments.destination)
    if not found:
        for argument, value in (("origin", arguments.origin), ("destination", arguments.destination)):
            if not case.rows(DISTANCES, origin=value) and not case.rows(DISTANCES, destination=value):
                raise BadArguments(LABELS[case.language].no_point.format(argument, shown(value)))
        return _nothing(case)
    row = found[0]
    return {
        "origin": row["origin"],
        "destination": row["destination"],
        "distance_in_meters": _whole(row["distance_meters"]),
        "duration_in_minutes": _whole(row["duration_minutes"]),
        "cost": _whole(row["cost"]),
    }


def _near(case: Case, arguments: Any) -> Reply:
    found = case.rows(RESTAURANTS, query_latitude=arguments.latitude, query_longitude=arguments.longitude)
    if not found:
        asked = f"{arguments.latitude},{arguments.longitude}"
        if all(f"{row['latitude']},{row['longitude']}" != asked for row in case.rows(LOCATIONS)):
            raise BadArguments(LABELS[case.language].no_point.format("latitude, longitude", shown(asked)))
    return [_renamed(row, _RESTAURANT) | _listed("tags", row) for row in found] or _nothing(case)


def _restaurant(case: Case, arguments: Any) -> Reply:
    row = _one(case, RESTAURANTS, "restaurant_name", arguments.restaurant_name)
    return {"id": row["restaurant_id"]} | _renamed(row, _RESTAURANT) | _listed("tags", row)


def _one(case: Case, table: Table, column: str, name: str, *, argument: str | None = None) -> dict[str, str]:
    """Return the first row of a name."""
    found = case.rows(table, **{column: name})
    if not found:
        raise BadArguments(LABELS[case.language].no_name.format(argument or column, shown(name)))
    return found[0]


def _nothing(case: Case) -> Reply:
    return {"message": LABELS[case.language].nothing}


def _renamed(row: Row, keys: Mapping[str, str]) -> dict[str, Any]:
    return {key: row[column] for key, column in keys.items()}


def _listed(column: str, row: Row) -> dict[str, Any]:
    return {column: row[column].split(_LIST_SEPARATOR)} if row[column].strip() else {}


def _whole(text: str) -> int | None:
    value = amount(text)
    return None if value is None else int(value)


_TOOLS: Mapping[str, tuple[str, Callable[[Case, Any], Reply]]] = {
    "query_train_info": ("origin destination depDate seatClassName?", _trains),
    "query_flight_info": ("origin destination depDate seatClassName?", _flights),
    # The case's hotels and attractions are all of its destination: place and days filter nothing.
    "query_hotel_info": ("destination checkinDate checkoutDate hotelStar? hotelBrands?", _hotels),
    "query_attraction_details": ("attraction_name", _attraction),
    "recommend_attractions": ("city attraction_type?", _attractions),
    "search_location": ("place_name", _location),
    "query_road_route_info": ("origin destination", _road),
    "recommend_restaurants": ("latitude longitude", _near),
    "query_restaurant_details": ("restaurant_name", _restaurant),
}
"""Arguments and function by the tool's name, in the order of the published schema; `?` marks an optional argument."""


def tools_in(language: Language) -> dict[str, Tool]:
    """Return the tools with descriptions in a language; they answer in the language of the case."""
    return {name: _tool(name, DESCRIPTIONS[language], *given) for name, given in _TOOLS.items()}


def _tool(name: str, words: Mapping[str, str], arguments: str, run: Callable[[Case, Any], Reply]) -> Tool:
    fields: dict[str, Any] = {}
    for argument in arguments.split():
        bare = argument.rstrip("?")
        kind: Any = Day if bare.endswith("Date") else Text
        text = words.get(f"{name}.{bare}", words[bare])
        needed = (kind, Field(description=text))
        fields[bare] = needed if bare == argument else (kind | None, Field(default=None, description=text))
    return Tool(name, words[name], create_model(name, __base__=Arguments, **fields), run)
