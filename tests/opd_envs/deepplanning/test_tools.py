"""The published interface: a call of every tool against the reply that the case's files give by hand."""

import asyncio
import json
from contextlib import closing

import pytest
from tests.agent_evidence.play import make_environment
from tests.agent_evidence.settings import settings
from tests.opd_envs.deepplanning.published import DATE, POINTS

from opd.agent.environments import load_environment, tool_schemas
from opd.agent.tool_pool import ToolPool
from opd.agent.tools import BadArguments, parse_arguments, render
from opd_envs import LANGUAGES
from opd_envs.deepplanning.database import Database
from opd_envs.travel.toy import MODELS, STUDENT

TOOLSET = "deepplanning-{}"
MILL = dict(zip(("latitude", "longitude"), POINTS["mill"], strict=True))
ROUTE = {"origin": "Asterby", "destination": "Birchford", "depDate": DATE}
STAY = {"destination": "Birchford", "checkinDate": DATE, "checkoutDate": "2025-11-13"}
PUBLISHED = {
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


@pytest.fixture(scope="module")
def call(imported):
    database = Database(imported)

    def run(tool_name: str, /, case: str = "en/0", **arguments):
        tool = load_environment(TOOLSET.format("en")).tools[tool_name]
        return json.loads(render(tool.run(database.in_case(case), parse_arguments(tool, arguments))))

    yield run
    database.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_arguments_and_types_are_the_published_ones(language):
    schemas = {schema["function"]["name"]: schema["function"] for schema in tool_schemas(TOOLSET.format(language))}
    assert list(schemas) == list(PUBLISHED)
    for name, (required, optional) in PUBLISHED.items():
        parameters = schemas[name]["parameters"]
        assert (parameters["required"], list(parameters["properties"])) == (required, required + optional)
        for spec in (schemas[name], *parameters["properties"].values()):
            assert spec["description"].isascii() == (language == "en")
        assert {spec["type"] for spec in parameters["properties"].values()} == {"string"}


def segment(number, times, minutes, start, end, seats, *, cities=("Asterby", "Birchford"), seat="Second Class Seat"):
    return {
        "arrCityName": cities[1], "arrStationCode": end[0], "arrStationName": f"{end[1]} Station",
        "depCityName": cities[0], "depStationCode": start[0], "depStationName": f"{start[1]} Station",
        "duration": minutes, "arrDateTime": f"{DATE} {times[1]}:00", "depDateTime": f"{DATE} {times[0]}:00",
        "marketingTransportName": "High Speed", "marketingTransportNo": number, "seatClassName": seat,
        "Remaining Seats": seats,
    }  # fmt: skip


def test_trains_come_by_route_and_segment_and_a_later_segment_leaves_where_the_one_before_ended(call):
    home, via, goal = ("H", "Asterby"), ("V", "Cedar Hill"), ("G", "Birchford")
    first = segment("G31", ("07:00", "08:20"), 80, home, goal, "3", seat="First Class Seat")
    change = {
        "Segment 1": segment("G21", ("10:00", "11:00"), 60, home, via, "Available"),
        "Segment 2": segment("G22", ("11:30", "12:10"), 40, via, goal, "2", cities=("Cedar Hill", "Birchford")),
        "price": 99.0,
    }
    direct = {"Segment 1": segment("G11", ("08:00", "09:30"), 90, home, goal, "6"), "price": 150.5}
    by_first = [{"Segment 1": first, "price": 240.0}]
    assert call("query_train_info", **ROUTE) == [[direct], by_first, [change]]  # by index as text: 1, 10, 2
    assert call("query_train_info", **ROUTE, seatClassName="First Class Seat") == [by_first]


def test_flights_have_their_aircraft(call):
    [route] = call("query_flight_info", **ROUTE)
    flight = route["Segment 1"]
    assert (route["price"], flight["marketingTransportNo"], flight["equipType"]) == (410.0, "HA101", "H20")


INN = {
    "name": "Lark Inn", "address": "1 Elm Street", "latitude": "31.210000", "longitude": "120.510000",
    "decorationTime": "2023", "hotelStar": "3", "price": "301.0", "score": "4.5", "brand": "Ji Hotel",
    "services": ["Swimming Pool", "Gym"],
}  # fmt: skip
MILLS = {"attraction_name": "Old Mill", "description": "<b>Old Mill</b>", "attraction_type": "Historical and Cultural"}
DETAILS = {
    "attraction_id": "B1", "city": "Birchford", "address": "B1 Lane", "rating": 4.6, "opening_time": "09:00",
    "closing_time": "17:00", "closing_dates": "", "min_visit_hours": 1.5, "max_visit_hours": 3.0, "ticket_price": 40.0,
}  # fmt: skip
NEAR = {
    "nearby_attraction_name": "Old Mill", "cuisine": "Noodles", "rating": "4.3", "opening_time": "10:00",
    "closing_time": "22:00",
}  # fmt: skip
DINER = NEAR | {
    "name": "Pear Diner", "latitude": "31.250000", "longitude": "120.550000", "price_per_person": "60",
    "tags": ["Birthday Package", "Window Seats"],
}  # fmt: skip
GRILL = NEAR | {"name": "Oak Grill", "latitude": "31.260000", "longitude": "120.560000", "price_per_person": "80"}


@pytest.mark.parametrize(
    ("tool", "arguments", "reply"),
    [
        ("query_hotel_info", {**STAY, "case": "en/1", "hotelStar": "3", "hotelBrands": "Ji Hotel"}, [INN]),
        ("query_hotel_info", {**STAY, "hotelStar": "3"}, [INN | {"price": "300.0"}]),
        ("query_hotel_info", {**STAY, "hotelStar": "1"}, {"message": "nothing fits these arguments"}),
        ("recommend_attractions", {"city": "x", "attraction_type": "Historical and Cultural"}, [MILLS]),
        ("query_attraction_details", {"attraction_name": "Old Mill"}, MILLS | MILL | DETAILS),
        ("recommend_restaurants", MILL, [DINER, GRILL]),
        ("query_restaurant_details", {"restaurant_name": "Pear Diner"}, {"id": "R1"} | DINER),
        ("search_location", {"place_name": "Old Mill"}, {"place_name": "Old Mill"} | MILL),
    ],
)
def test_a_tool_answers_from_the_files_of_the_case(call, tool, arguments, reply):
    assert call(tool, **arguments) == reply


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
def test_a_wrong_argument_is_named_with_the_rule(call, tool, arguments, message):
    with pytest.raises(BadArguments, match=message):
        call(tool, **arguments)


def test_a_pool_of_processes_answers_from_the_rows_own_case_and_language(imported):
    async def ask(pool):
        cases = ("en/0", "zh/1", "en/99")
        return [await pool.call("query_hotel_info", STAY | {"hotelStar": "3"}, case_id=case) for case in cases]

    with closing(ToolPool(imported, num_processes=1, timeout_s=60.0, toolset=TOOLSET.format("en"))) as pool:
        *replies, absent = asyncio.run(ask(pool))
    found = [json.loads(reply.text)[0] for reply in replies]
    assert [(hotel["name"], hotel["price"]) for hotel in found] == [("Lark Inn", "300.0"), ("云雀客栈", "301.0")]
    assert absent.error == "crashed"


def test_a_row_without_a_case_ends_the_run_and_says_what_to_prepare(imported):
    environment = make_environment(MODELS[STUDENT], settings(imported, toolset=TOOLSET.format("en")))
    try:
        with pytest.raises(ValueError, match=r"extra_info.case_id is not set: agent.toolset = deepplanning-en"):
            environment.tools({"case_id": None})
    finally:
        environment.pool.close()
