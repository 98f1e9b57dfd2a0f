"""Rows of agent tasks: verl's columns, with what the environment needs to know of an episode in `extra_info`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from opd.data.rows import SCHEMA, Row
from opd.envs.travel.data.generate import GeneratedTask
from opd.envs.travel.entries import WEEKDAYS, Language
from opd.envs.travel.task import HardConstraints, Question, Task, Trip, task_text

Message = dict[str, str]
Words = Mapping[Language, str]

_MODES: Mapping[Language, Mapping[str, str]] = {
    "en": {"train": "train", "flight": "plane"},
    "zh": {"train": "火车", "flight": "飞机"},
}
_QUESTIONS: Mapping[str, Words] = {
    "price": {"en": "How much is {name} in {city}?", "zh": "{city}的{name}多少钱？"},
    "cheapest_hotel": {
        "en": "Which hotel in {city} with at least {min_stars} stars is the cheapest?",
        "zh": "{city}至少{min_stars}星的酒店中哪一家最便宜？",
    },
    "first_train": {
        "en": "What is the number of the first train from {city} to {destination} on {date}?",
        "zh": "{date}从{city}到{destination}的第一班火车是哪一趟？",
    },
}
_ANSWER_FORM: Words = {
    "en": "Use the tools. Answer as <answer>...</answer>.",
    "zh": "请使用工具，并以<answer>...</answer>作答。",
}
_EXAMPLE = {
    "days": [
        {
            "day": 1,
            "activities": [
                {"type": "train", "name": "G1", "start": "08:00", "end": "09:30"},
                {"type": "attraction", "name": "...", "start": "10:30", "end": "12:00"},
                {"type": "meal", "name": "...", "start": "12:30", "end": "13:30"},
            ],
            "hotel": "...",
        }
    ],
    "total_cost": 0,
}
_PLAN_FORM: Words = {
    "en": (
        "You plan trips with the tools. When the plan is complete, answer with it as JSON in this form, times as HH:MM, "
        "types train, flight, attraction, meal:\n<plan>{example}</plan>\n"
        "Rules: name only what the tools give, exactly as they give it. Trips run at their own times; leave 30 minutes "
        "before and after them. Leave the time that place_distance gives between places. Visit only what is open, a "
        "sight for its visit_minutes at least, a meal for 30. Every day has a meal, a day without a trip two and a "
        "sight. Nothing twice. Every night but the last day's has a hotel, where a room sleeps two; the last day's "
        "hotel is null. total_cost is what everything costs all travellers."
    ),
    "zh": (
        "你用工具规划行程。规划完成后，按以下形式用JSON给出，时间写作HH:MM，类型为train、flight、attraction、meal：\n"
        "<plan>{example}</plan>\n"
        "规则：只写工具给出的名称，并与其完全一致。车次和航班按其时刻运行，前后各留30分钟。地点之间留出place_distance给出的时间。"
        "只在开放时间内游览，景点至少停留visit_minutes分钟，用餐至少30分钟。每天至少一餐；没有乘车乘机的日子两餐并游览一个景点。"
        "任何地点不重复。除最后一天外每晚住酒店，每间房住两人；最后一天的hotel为null。total_cost为全体旅客的全部费用。"
    ),
}
_REPORT_FORM: Words = {
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
_TRIP: Words = {
    "en": "Plan {num_days} days from {origin} to {destinations} and back, from {date} ({weekday}), for {num_people} traveller(s).",
    "zh": "请规划{num_days}天的行程：从{origin}出发，前往{destinations}，然后返回，{date}（{weekday}）出发，共{num_people}人。",
}
_DAY: Words = {
    "en": "Plan a day in {origin} on {date} ({weekday}) for {num_people} traveller(s).",
    "zh": "请规划{date}（{weekday}）在{origin}的一天，共{num_people}人。",
}
_THEN: Words = {"en": ", then ", "zh": "，再到"}
_AND: Words = {"en": ", ", "zh": "、"}


def _in_words(language: Language) -> dict[str, Callable[[Any], str]]:
    """Each hard constraint in words, by its name."""
    if language == "zh":
        return {
            "budget": lambda value: f"总费用不超过{value}。",
            "transport_mode": lambda value: f"城市之间只乘{_MODES['zh'][value]}。",
            "hotel_min_stars": lambda value: f"酒店至少{value}星。",
            "hotel_feature": lambda value: f"酒店须有{value}。",
            "hotel_max_price": lambda value: f"每间房每晚不超过{value}。",
            "must_visit": lambda value: f"必须游览{_AND['zh'].join(value)}。",
            "cuisine": lambda value: f"至少一餐是{value}。",
            "arrive_by": lambda value: f"第一天{value}之前到达。",
        }
    return {
        "budget": lambda value: f"Everything together costs at most {value}.",
        "transport_mode": lambda value: f"Between cities go by {_MODES['en'][value]} only.",
        "hotel_min_stars": lambda value: f"Hotels have at least {value} stars.",
        "hotel_feature": lambda value: f"Hotels have: {value}.",
        "hotel_max_price": lambda value: f"No room costs more than {value} a night.",
        "must_visit": lambda value: f"Visit {_AND['en'].join(value)}.",
        "cuisine": lambda value: f"One meal at least is {value}.",
        "arrive_by": lambda value: f"Arrive on the first day by {value}.",
    }


def question_messages(question: Question, language: Language) -> list[Message]:
    """The conversation that asks a question."""
    text = _QUESTIONS[question.about][language].format(**question.model_dump())
    return [{"role": "user", "content": f"{text} {_ANSWER_FORM[language]}"}]


def trip_messages(trip: Trip, language: Language) -> list[Message]:
    """The conversation that asks for a plan: the rules as system message, the trip and its demands as request."""
    at_home = trip.destinations == (trip.origin,)
    request = (_DAY if at_home else _TRIP)[language].format(
        num_days=trip.num_days,
        origin=trip.origin,
        destinations=_THEN[language].join(trip.destinations),
        date=trip.start_date,
        weekday=WEEKDAYS[language][trip.start_date.weekday()],
        num_people=trip.num_people,
    )
    return [
        {"role": "system", "content": plan_rules(language)},
        {"role": "user", "content": " ".join([request, *demands(trip.hard, language)])},
    ]


def plan_rules(language: Language) -> str:
    """The form and the rules of a plan."""
    return _PLAN_FORM[language].format(example=json.dumps(_EXAMPLE))


def benchmark_rules(language: Language) -> str:
    """The form and the rules of a plan over the benchmark's tools, in the benchmark's own layout."""
    return _REPORT_FORM[language]


def demands(hard: HardConstraints, language: Language) -> list[str]:
    """The demands in words, one sentence each."""
    words = _in_words(language)
    return [words[name](value) for name, value in hard.asked()]


_EXTRA_INFO = pa.struct(
    [
        *SCHEMA.field("extra_info").type.fields,
        ("language", pa.string()),
        ("grade", pa.int64()),  # null: not one of ours
        ("database_id", pa.string()),  # null: needs none
        ("episode_seed", pa.int64()),  # null: the database's own prices
        ("case_id", pa.string()),  # null: its database has no part for each task
        ("tool_selection", pa.list_(pa.string())),  # null: all tools are offered
    ]
)
AGENT_SCHEMA = pa.schema([field if field.name != "extra_info" else ("extra_info", _EXTRA_INFO) for field in SCHEMA])


def agent_row(
    task: Task,
    messages: list[Message],
    *,
    data_source: str,
    split: str,
    index: int,
    problem_id: str,
    language: Language,
    grade: int | None = None,
    database_id: str | None = None,
    episode_seed: int | None = None,
    case_id: str | None = None,
    tool_selection: tuple[str, ...] | None = None,
) -> Row:
    """One row; `index` must be unique in its file: it orders rows and seeds their sampling."""
    return {
        "data_source": data_source,
        "prompt": messages,
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": task_text(task)},
        "extra_info": {
            "split": split,
            "index": index,
            "data_source": data_source,
            "problem_id": problem_id,
            "language": language,
            "grade": grade,
            "database_id": database_id,
            "episode_seed": episode_seed,
            "case_id": case_id,
            "tool_selection": None if tool_selection is None else list(tool_selection),
        },
    }


def generated_row(generated: GeneratedTask, *, split: str, index: int, only_needed_tools: bool) -> Row:
    """The row of a generated task."""
    task = generated.task
    ask = question_messages if isinstance(task, Question) else trip_messages
    return agent_row(
        task,
        ask(task, generated.language),  # type: ignore[arg-type]  # chosen by the task's own type
        data_source=f"travel_{generated.language}",
        split=split,
        index=index,
        problem_id=f"g{generated.grade}-{generated.language}-{index}",
        language=generated.language,
        grade=generated.grade,
        database_id=generated.database_id,
        episode_seed=generated.episode_seed,
        tool_selection=generated.tools if only_needed_tools else None,
    )
