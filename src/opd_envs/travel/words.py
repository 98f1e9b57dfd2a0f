"""Generated tasks in words, English and Chinese, and as rows."""

import json
from collections.abc import Mapping

from opd.data.rows import Row
from opd_envs import Language
from opd_envs.rows import agent_row
from opd_envs.scoring import task_text
from opd_envs.travel.entries import WEEKDAYS
from opd_envs.travel.generate import GeneratedTask
from opd_envs.travel.task import Question, Trip

Message = dict[str, str]
Words = Mapping[Language, str]

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


_MODES: Mapping[str, Words] = {"train": {"en": "train", "zh": "火车"}, "flight": {"en": "plane", "zh": "飞机"}}
_DEMANDS: Mapping[str, Words] = {
    "budget": {"en": "Everything together costs at most {}.", "zh": "总费用不超过{}。"},
    "transport_mode": {"en": "Between cities go by {} only.", "zh": "城市之间只乘{}。"},
    "hotel_min_stars": {"en": "Hotels have at least {} stars.", "zh": "酒店至少{}星。"},
    "hotel_feature": {"en": "Hotels have: {}.", "zh": "酒店须有{}。"},
    "hotel_max_price": {"en": "No room costs more than {} a night.", "zh": "每间房每晚不超过{}。"},
    "must_visit": {"en": "Visit {}.", "zh": "必须游览{}。"},
    "cuisine": {"en": "One meal at least is {}.", "zh": "至少一餐是{}。"},
    "arrive_by": {"en": "Arrive on the first day by {}.", "zh": "第一天{}之前到达。"},
}


def _demand(name: str, value: object, language: Language) -> str:
    if isinstance(value, tuple):
        value = _AND[language].join(value)
    elif name == "transport_mode":
        value = _MODES[str(value)][language]
    return _DEMANDS[name][language].format(value)


def messages(task: Question | Trip, language: Language) -> list[Message]:
    """Return the conversation of a task: a question, or a plan's rules as system message and the trip with its demands."""
    if isinstance(task, Question):
        text = _QUESTIONS[task.about][language].format(**task.model_dump())
        return [{"role": "user", "content": f"{text} {_ANSWER_FORM[language]}"}]
    at_home = task.destinations == (task.origin,)
    request = (_DAY if at_home else _TRIP)[language].format(
        num_days=task.num_days,
        origin=task.origin,
        destinations=_THEN[language].join(task.destinations),
        date=task.start_date,
        weekday=WEEKDAYS[language][task.start_date.weekday()],
        num_people=task.num_people,
    )
    demands = [_demand(name, value, language) for name, value in task.hard.asked()]
    return [
        {"role": "system", "content": _PLAN_FORM[language].format(example=json.dumps(_EXAMPLE))},
        {"role": "user", "content": " ".join([request, *demands])},
    ]


def generated_row(generated: GeneratedTask, *, split: str, index: int, tool_selection: list[str] | None = None) -> Row:
    """Return the row of a generated task."""
    return agent_row(
        task_text(generated.task),
        messages(generated.task, generated.language),
        data_source=f"travel_{generated.language}",
        split=split,
        index=index,
        problem_id=f"g{generated.grade}-{generated.language}-{index}",
        language=generated.language,
        grade=generated.grade,
        database_id=generated.database_id,
        episode_seed=generated.episode_seed,
        tool_selection=tool_selection,
    )
