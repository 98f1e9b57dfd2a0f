"""The published interface: a scripted call of every tool against the reply that the case's files give by hand."""

import asyncio
import json
from dataclasses import replace

import pytest
from tests.agent_evidence.play import make_environment
from tests.agent_evidence.settings import settings
from tests.opd_envs.deepplanning.published import DATE, POINTS

from opd.agent.environments import load_environment, tool_schemas
from opd.agent.tool_pool import ToolPool
from opd.agent.tools import BadArguments, parse_arguments, render
from opd_envs import LANGUAGES
from opd_envs.deepplanning.database import open_database
from opd_envs.travel.toy import MODELS, STUDENT

TOOLSET = "deepplanning-{}"
MILL = dict(zip(("latitude", "longitude"), POINTS["mill"], strict=True))
ROUTE = {"en": {"origin": "Asterby", "destination": "Birchford"}, "zh": {"origin": "甲城", "destination": "乙城"}}


@pytest.fixture(scope="module")
def database(imported):
    database = open_database(imported)
    yield database
    database.close()


def call(database, tool_name: str, /, language: str = "en", case: str = "0", **arguments):
    tool = load_environment(TOOLSET.format(language)).tools[tool_name]
    parsed = parse_arguments(tool, arguments)
    return json.loads(render(tool.run(database.in_case(f"{language}/{case}"), parsed)))


def refusal(database, tool_name: str, /, language: str = "en", **arguments) -> str:
    with pytest.raises(BadArguments) as caught:
        call(database, tool_name, language, **arguments)
    return str(caught.value)


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_arguments_and_types_are_the_published_ones(language):
    published = {
        "query_train_info": (["origin", "destination", "depDate"], ["seatClassName"]),
        "query_flight_info": (["origin", "destination", "depDate"], ["seatClassName"]),
        "query_hotel_info": (["destination", "checkinDate", "checkoutDate"], ["hotelStar", "hotelBrands"]),
        "query_attraction_details": (["attraction_name"], []),
        "recommend_attractions": (["city"], ["attraction_type"]),
        "search_location": (["place_name"], []),
        "query_road_route_info": (["origin", "destination"], []),
        "recommend_restaurants": (["latitude", "longitude"], []),
        "query_restaurant_details": (["restaurant_name"], []),
    }
    schemas = {schema["function"]["name"]: schema["function"] for schema in tool_schemas(TOOLSET.format(language))}
    assert list(schemas) == list(published)
    for name, (required, optional) in published.items():
        parameters = schemas[name]["parameters"]
        assert parameters["required"] == required
        assert list(parameters["properties"]) == required + optional
        for spec in (schemas[name], *parameters["properties"].values()):
            assert spec["description"].isascii() == (language == "en")
        assert {spec["type"] for spec in parameters["properties"].values()} == {"string"}


def train(number, times, minutes, stations, seats, *, cities=("Asterby", "Birchford"), seat="Second Class Seat"):
    (start, start_code), (end, end_code) = stations
    return {
        "arrCityName": cities[1], "arrStationCode": end_code, "arrStationName": f"{end} Station",
        "depCityName": cities[0], "depStationCode": start_code, "depStationName": f"{start} Station",
        "duration": minutes, "arrDateTime": f"{DATE} {times[1]}:00", "depDateTime": f"{DATE} {times[0]}:00",
        "marketingTransportName": "High Speed", "marketingTransportNo": number, "seatClassName": seat,
        "Remaining Seats": seats,
    }  # fmt: skip


def test_trains_are_told_by_route_and_segment_and_a_later_segment_leaves_where_the_one_before_ended(database):
    home, via, goal = ("Asterby", "H"), ("Cedar Hill", "V"), ("Birchford", "G")
    direct = {"Segment 1": train("G11", ("08:00", "09:30"), 90, (home, goal), "6"), "price": 150.5}
    change = {
        "Segment 1": train("G21", ("10:00", "11:00"), 60, (home, via), "Available"),
        "Segment 2": train("G22", ("11:30", "12:10"), 40, (via, goal), "2", cities=("Cedar Hill", "Birchford")),
        "price": 99.0,
    }
    first = train("G31", ("07:00", "08:20"), 80, (home, goal), "3", seat="First Class Seat")
    found = call(database, "query_train_info", **ROUTE["en"], depDate=DATE)
    assert found == [[direct], [{"Segment 1": first, "price": 240.0}], [change]]  # by index as text: 1, 10, 2
    only = call(database, "query_train_info", **ROUTE["en"], depDate=DATE, seatClassName="First Class Seat")
    assert only == [[{"Segment 1": first, "price": 240.0}]]


def test_hotels_are_filtered_by_stars_and_brand_and_are_those_of_the_case(database):
    stay = {"destination": "Birchford", "checkinDate": DATE, "checkoutDate": "2025-11-13"}
    inn = {
        "name": "Lark Inn", "address": "1 Elm Street", "latitude": "31.210000", "longitude": "120.510000",
        "decorationTime": "2023", "hotelStar": "3", "price": "301.0", "score": "4.5", "brand": "Ji Hotel",
        "services": ["Swimming Pool", "Gym"],
    }  # fmt: skip
    assert call(database, "query_hotel_info", **stay, case="1", hotelStar="3", hotelBrands="Ji Hotel") == [inn]
    assert call(database, "query_hotel_info", **stay, case="0", hotelStar="3") == [inn | {"price": "300.0"}]
    both = call(database, "query_hotel_info", **stay)
    assert [hotel["name"] for hotel in both] == ["Lark Inn", "Heron Palace"]
    assert "services" not in both[1]


def test_attractions_are_listed_by_type_and_told_in_full(database):
    mill = {
        "attraction_name": "Old Mill",
        "description": "<b>Old Mill</b>",
        "attraction_type": "Historical and Cultural",
    }
    listed = call(database, "recommend_attractions", city="Birchford", attraction_type="Historical and Cultural")
    assert listed == [mill]
    every = call(database, "recommend_attractions", city="Birchford")
    assert [sight["attraction_name"] for sight in every] == ["Old Mill", "Fern Garden"]
    assert call(database, "query_attraction_details", attraction_name="Old Mill") == mill | MILL | {
        "attraction_id": "B1", "city": "Birchford", "address": "B1 Lane", "rating": 4.6, "opening_time": "09:00",
        "closing_time": "17:00", "closing_dates": "", "min_visit_hours": 1.5, "max_visit_hours": 3.0,
        "ticket_price": 40.0,
    }  # fmt: skip


def test_restaurants_are_found_near_a_place_and_by_name(database):
    near = {"nearby_attraction_name": "Old Mill", "cuisine": "Noodles", "rating": "4.3"}
    hours = {"opening_time": "10:00", "closing_time": "22:00"}
    diner = {
        "name": "Pear Diner", "latitude": "31.250000", "longitude": "120.550000", "price_per_person": "60",
        **near, **hours, "tags": ["Birthday Package", "Window Seats"],
    }  # fmt: skip
    grill = {"name": "Oak Grill", "latitude": "31.260000", "longitude": "120.560000", "price_per_person": "80"}
    assert call(database, "recommend_restaurants", **MILL) == [diner, grill | near | hours]
    told = call(database, "query_restaurant_details", restaurant_name="Pear Diner")
    assert told == {"id": "R1"} | diner


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("query_attraction_details", {"attraction_name": "Mill"}, 'attraction_name = "Mill": there is none of this'),
        ("search_location", {"place_name": "Mill"}, 'place_name = "Mill": there is none of this name'),
        ("query_restaurant_details", {"restaurant_name": "x"}, 'restaurant_name = "x": there is none of this name'),
        ("query_road_route_info", {"origin": "1,2", "destination": "3,4"}, 'origin = "1,2": no place is there'),
        ("recommend_restaurants", {"latitude": "31.23", "longitude": "120.53"}, "with six decimals"),
        ("recommend_restaurants", {"latitude": 31.23, "longitude": "120.53"}, "latitude = 31.23: Input should be a"),
        ("query_train_info", {"origin": "x", "destination": "y", "depDate": "tomorrow"}, 'depDate = "tomorrow"'),
        ("search_location", {"place_name": "x" * 201}, "at most 200 characters"),
    ],
)
def test_a_wrong_argument_is_named_with_the_rule(database, tool, arguments, message):
    assert message in refusal(database, tool, **arguments)


def test_a_pool_of_processes_answers_from_the_rows_own_case_and_language(imported):
    pool = ToolPool(imported, num_processes=1, timeout_s=60.0, toolset=TOOLSET.format("en"))
    stay = {"destination": "x", "checkinDate": DATE, "checkoutDate": DATE, "hotelStar": "3"}

    async def ask():
        cases = ("en/0", "en/1", "zh/1", "en/99")
        return [await pool.call("query_hotel_info", stay, case_id=case) for case in cases]

    try:
        *replies, absent = asyncio.run(ask())
    finally:
        pool.close()
    found = [json.loads(reply.text)[0] for reply in replies]
    assert [(hotel["name"], hotel["price"]) for hotel in found] == [
        ("Lark Inn", "300.0"),
        ("Lark Inn", "301.0"),
        ("云雀客栈", "301.0"),
    ]
    assert absent.error == "crashed"


def test_a_row_without_a_case_ends_the_run_and_says_what_to_prepare(imported):
    found = replace(settings(imported), toolset=TOOLSET.format("en"))
    environment = make_environment(MODELS[STUDENT], found)
    try:
        with pytest.raises(ValueError, match=r"extra_info.case_id is not set: agent.toolset = deepplanning-en"):
            environment.tools({"case_id": None})
    finally:
        environment.close()
