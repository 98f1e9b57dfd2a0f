"""The form and the rules of a plan over the benchmark's tools, in the benchmark's own layout."""

from collections.abc import Mapping

from opd_envs.travel.entries import Language

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
