"""Texts in each language: the published keys of replies, our descriptions of tools and arguments, the prompt's rules."""

from collections.abc import Mapping
from typing import NamedTuple

from opd_envs import Language


class Labels(NamedTuple):
    """Words in replies; the first four are the benchmark's."""

    segment: str
    seats: str
    enough: str
    """Seats left where the timetable gives no number."""
    station: str
    """What follows a city in a station's name."""
    nothing: str
    no_name: str
    no_point: str


LABELS: Mapping[Language, Labels] = {
    "en": Labels(
        segment="Segment {}",
        seats="Remaining Seats",
        enough="Available",
        station=" Station",
        nothing="nothing fits these arguments",
        no_name="{0} = {1}: there is none of this name; use a name exactly as a tool gave it",
        no_point="{0} = {1}: no place is there; use coordinates exactly as a tool gave them, with six decimals",
    ),
    "zh": Labels(
        segment="第{}段",
        seats="剩余票数量",
        enough="充足",
        station="站",
        nothing="没有符合这些参数的结果",
        no_name="{0} = {1}：没有这个名称；请照抄工具给出的名称",
        no_point="{0} = {1}：此处没有地点；请照抄工具给出的坐标，保留六位小数",
    ),
}

DESCRIPTIONS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "query_train_info": "Trains between two cities on a day, direct or with a change: each segment's stations, "
        "times, number, class and seats left, and the price per person of the whole route.",
        "query_flight_info": "Flights between two cities on a day, direct or with a change: each segment's "
        "airports, times, number, class, seats left and aircraft, and the price per person of the whole route.",
        "query_hotel_info": "Hotels at the destination with address, coordinates, stars, score, services and price "
        "per room and night.",
        "query_attraction_details": "One attraction: coordinates, rating, opening hours, closing days, hours a "
        "visit takes, ticket price, type.",
        "recommend_attractions": "Attractions of the destination with what they are; plans may name these and no "
        "others.",
        "search_location": "Coordinates of a place that another tool named: a station, airport, hotel, restaurant "
        "or attraction.",
        "query_road_route_info": "The way between two places: metres, minutes and cost. Up to 2 km is walked and "
        "costs nothing, more is by taxi; the cost is of one car for four.",
        "recommend_restaurants": "Restaurants near a place: coordinates, price per person, cuisine, opening hours, "
        "rating, tags.",
        "query_restaurant_details": "One restaurant: coordinates, price per person, cuisine, opening hours, rating, "
        "tags.",
        "origin": "City of departure.",
        "query_road_route_info.origin": "LATITUDE,LONGITUDE with six decimals each, as a tool gave them.",
        "destination": "City of arrival.",
        "query_hotel_info.destination": "City or district.",
        "query_road_route_info.destination": "LATITUDE,LONGITUDE with six decimals each, as a tool gave them.",
        "depDate": "Day of departure, YYYY-MM-DD.",
        "seatClassName": "Only this class: First Class Seat, Second Class Seat or Business Seat.",
        "query_flight_info.seatClassName": "Only this class: Economy Class, Business Class or First Class.",
        "checkinDate": "First night, YYYY-MM-DD.",
        "checkoutDate": "Day of leaving, YYYY-MM-DD.",
        "hotelStar": "Only hotels of this many stars: one of 1 to 5.",
        "hotelBrands": "Only one brand: Ji Hotel, Atour Hotel, Marriott, Hilton, Home Inn, Jinjiang Inn, Hanting "
        "Hotel or Orange Hotel.",
        "attraction_name": "Exact name.",
        "city": "City.",
        "attraction_type": "Only one type: Historical and Cultural, Natural Scenery, Art Exhibition, City Landmark, "
        "Theme Park or Leisure Experience.",
        "place_name": "Exact name.",
        "latitude": "Of the place, with six decimals, as a tool gave it.",
        "longitude": "Of the place, with six decimals, as a tool gave it.",
        "restaurant_name": "Exact name.",
    },
    "zh": {
        "query_train_info": "某日两城之间的火车，直达或换乘：每段的车站、时间、车次、席别和余票，以及全程每人票价。",
        "query_flight_info": "某日两城之间的航班，直飞或中转：每段的机场、时间、航班号、舱位、余票和机型，以及全程每人票价。",
        "query_hotel_info": "目的地的酒店：地址、坐标、星级、评分、服务和每间每晚价格。",
        "query_attraction_details": "一处景点：坐标、评分、开放时间、闭馆日、游玩时长、门票价格和类型。",
        "recommend_attractions": "目的地的景点及其简介；行程中只可写这些景点。",
        "search_location": "其他工具给出的地点（车站、机场、酒店、餐厅、景点）的坐标。",
        "query_road_route_info": "两地之间的路程：米数、分钟数和费用。2公里以内步行，不花钱；更远则乘出租车，费用为一辆车，可坐四人。",
        "recommend_restaurants": "某地附近的餐厅：坐标、人均价格、菜系、营业时间、评分和标签。",
        "query_restaurant_details": "一家餐厅：坐标、人均价格、菜系、营业时间、评分和标签。",
        "origin": "出发城市。",
        "query_road_route_info.origin": "纬度,经度，各六位小数，照抄工具给出的坐标。",
        "destination": "到达城市。",
        "query_hotel_info.destination": "城市或区县。",
        "query_road_route_info.destination": "纬度,经度，各六位小数，照抄工具给出的坐标。",
        "depDate": "出发日期，YYYY-MM-DD。",
        "seatClassName": "只要此席别：一等座、二等座或商务座。",
        "query_flight_info.seatClassName": "只要此舱位：经济舱、超级经济舱、公务舱或头等舱。",
        "checkinDate": "入住日期，YYYY-MM-DD。",
        "checkoutDate": "离店日期，YYYY-MM-DD。",
        "hotelStar": "只要此星级：1到5之一。",
        "hotelBrands": "只要一个品牌：全季、亚朵、万豪、希尔顿、如家、锦江之星、汉庭或桔子。",
        "attraction_name": "完整名称。",
        "city": "城市。",
        "attraction_type": "只要一种类型：历史文化、自然风光、艺术展览、城市地标、主题乐园或休闲体验。",
        "place_name": "完整名称。",
        "latitude": "该地纬度，六位小数，照抄工具给出的坐标。",
        "longitude": "该地经度，六位小数，照抄工具给出的坐标。",
        "restaurant_name": "完整名称。",
    },
}
"""By the name of a tool, of an argument, or `TOOL.ARGUMENT` where the argument means something else in this tool."""

REPORT_FORM: Mapping[Language, str] = {
    "en": (
        "You plan trips with the tools. The request says everything: ask nothing back. When the plan is complete, write it "
        "in <plan></plan>, one line an activity, in this layout:\n"
        "<plan>\n"
        "Day 1:\n"
        "Current City: from CITY to CITY (on a day in one city: CITY)\n"
        "Accommodation: HOTEL, ¥PRICE/room/night (on the last day: -)\n"
        "HH:MM-HH:MM | travel_intercity_public | train NUMBER, STATION - STATION, ¥PRICE/person (or: flight NUMBER, ...)\n"
        "HH:MM-HH:MM | buffer | WHAT\n"
        "HH:MM-HH:MM | travel_city | PLACE - PLACE, 3.2km, 12min, ¥PRICE\n"
        "HH:MM-HH:MM | hotel | WHAT, HOTEL\n"
        "HH:MM-HH:MM | attraction | ATTRACTION, ¥PRICE/person\n"
        "HH:MM-HH:MM | meal | Lunch, RESTAURANT, ¥PRICE/person\n"
        "Total Estimated Budget: AMOUNT\n"
        "</plan>\n"
        "Names, numbers and prices are those that the tools give, unchanged; a trip runs at its own times. Nothing overlaps. "
        "Between two places lies a travel_city of the minutes that the way takes (5 more or less); waiting is a buffer, for "
        "example before and after a trip. Places are visited while they are open, not on their closing days; an attraction "
        "between its shortest and its longest visit, a meal for one to two hours. A day in one city has two meals, two hours "
        "apart, and two attractions or one of four hours with its ways. Arriving before 10:00: two meals; 10:00-15:00: at "
        "least one; later: at most one; before 12:00: an attraction. Leaving the visited city before 9:00: no meal; "
        "9:00-15:00: at most one; later: at least one; after 16:00: an attraction. No restaurant and no attraction twice. "
        "Every day but the last ends in its hotel. The trip begins and ends in the city it is from. The total is what all "
        "travellers pay: trips, meals and tickets a person, rooms a night, a taxi for every four."
    ),
    "zh": (
        "你用工具规划行程。需求已说明一切，不要反问。规划完成后写在<plan></plan>中，每项活动一行，格式如下：\n"
        "<plan>\n"
        "Day 1:\n"
        "Current City: from 城市 to 城市（只在一个城市的日子写：城市）\n"
        "Accommodation: 酒店，￥价格/间/晚（最后一天写：-）\n"
        "HH:MM-HH:MM | travel_intercity_public | train 车次，车站 - 车站，￥价格/人（或：flight 航班号，……）\n"
        "HH:MM-HH:MM | buffer | 说明\n"
        "HH:MM-HH:MM | travel_city | 地点 - 地点，3.2km，12min，￥价格\n"
        "HH:MM-HH:MM | hotel | 说明，酒店\n"
        "HH:MM-HH:MM | attraction | 景点，￥价格/人\n"
        "HH:MM-HH:MM | meal | 午餐，餐厅，￥价格/人\n"
        "Total Estimated Budget: 总额\n"
        "</plan>\n"
        "名称、编号和价格照抄工具所给；车次和航班按其时刻。活动不得重叠。两地之间写travel_city，时长为路程所需（可差5分钟）；"
        "等待写buffer，例如乘车乘机前后。只在开放时间游览，避开闭馆日；景点停留在最短与最长游玩时长之间，用餐一到两小时。"
        "只在一个城市的日子安排两餐，相隔至少两小时，并游览两个景点，或一个连同往返四小时的景点。10:00前到达：两餐；10:00至15:00："
        "至少一餐；更晚：至多一餐；12:00前到达须游览一个景点。9:00前离开游览城市：不用餐；9:00至15:00：至多一餐；更晚：至少一餐；"
        "16:00后离开须先游览一个景点。餐厅和景点不重复。除最后一天外，每天最后一项是回酒店。行程从出发城市开始，也在那里结束。"
        "总额为全体旅客所付：车票机票、用餐、门票按人，酒店按间按晚，每四人一辆出租车。"
    ),
}
"""Form and rules of a plan, in the benchmark's report layout."""
