"""A plan out of a model's text: what the report's layout may vary in, and what is no plan."""

import pytest

from opd_envs.deepplanning.scoring.report import MAX_LINE_CHARS, parse_plan
from opd_envs.scoring import MAX_BLOCK_CHARS, PlanError

PLACES = {"North - East Station", "Lai-Lai Hotel", "Old Mill", "云雀客栈", "老磨坊"}


def only(line: str, *, head: str = "Day 1:"):
    (day,) = parse_plan(f"<plan>\n{head}\n{line}\n</plan>", places=PLACES).days
    return day


def details(line: str) -> dict:
    (activity,) = only(line).activities
    return {name: value for name, value in activity.details.model_dump().items() if value not in ("", None)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "07:00-09:00 | travel_intercity_public | flight CA1234, A Airport - B Airport, ¥1,650.5/person",
            {"mode": "flight", "number": "CA1234", "origin": "A Airport", "destination": "B Airport", "cost": 1650.5},
        ),
        (
            "07:00-09:00｜travel_intercity_public｜train G11，甲城站 - 乙城站，￥150/人",
            {"mode": "train", "number": "G11", "origin": "甲城站", "destination": "乙城站", "cost": 150},
        ),
        ("09:00-09:10 | travel_city | A - B, 0.5km, 10min, ¥0", {"origin": "A", "destination": "B", "cost": 0}),
        ("09:00-09:10 | travel_city | A, East Gate - B, ¥30", {"origin": "A, East Gate", "destination": "B", "cost": 30}),
        # A dash within a name: the split with a known place on both sides is taken.
        (
            "09:00-09:10 | travel_city | North - East Station - Lai-Lai Hotel, 3 km, 10 min, ¥12",
            {"origin": "North - East Station", "destination": "Lai-Lai Hotel", "cost": 12},
        ),
        ("09:00-09:10 | travel_city | 云雀客栈-老磨坊，1公里，5分钟，免费", {"origin": "云雀客栈", "destination": "老磨坊", "cost": 0}),
        ("12:30-16:30 | attraction | Palace, East Hall, ¥60/person", {"name": "Palace, East Hall", "cost": 60}),
        ("12:30-16:30 | Attraction | Old Mill, free", {"name": "Old Mill", "cost": 0}),
        ("12:30-16:30 | attraction | Old Mill", {"name": "Old Mill"}),
        ("- **11:30-12:30** | meal | Lunch, Diner (West), RMB 100/person", {"name": "Diner (West)", "cost": 100}),
        ("11:30 – 12:30 | meal | 午餐，梨子餐馆，100元/人", {"name": "梨子餐馆", "cost": 100}),
        ("10:40-11:30 | hotel | Check-in, Lai-Lai Hotel", {"name": "Lai-Lai Hotel"}),
        ("10:40-11:30 | buffer | Security, waiting", {}),
        ("10:40-11:30 | nap | Under a tree, ¥3", {}),
    ],
)  # fmt: skip
def test_a_line_is_read_whatever_its_commas_dashes_and_prices_look_like(line, expected):
    assert details(line) == expected


@pytest.mark.parametrize(
    ("line", "name", "price"),
    [
        ("Accommodation: Inn, East, ¥1,000/room/night", "Inn, East", 1000),
        ("**Accommodation**: Inn", "Inn", None),
        ("住宿：云雀客栈，￥300/间/晚", "云雀客栈", 300),
    ],
)
def test_the_hotel_has_a_name_and_a_price(line, name, price):
    stay = only(line).accommodation
    assert (stay.name, stay.price) == (name, price)


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("**Total Estimated Budget: 6,280 RMB**", 6280),
        ("Total Estimated Budget: ¥6280.50 = 2 * 3140.25", 6280.5),
        ("总预算：6280元", 6280),
        ("Total Estimated Budget (RMB, 2 people, 3 days): 6,280", 6280),
        ("Total Estimated Budget: ¥-5", None),
        ("Transportation: 2400 RMB", None),
    ],
)
def test_the_total_is_the_number_behind_its_words(text, total):
    assert parse_plan(f"<plan>Day 1:\n{text}</plan>", places=()).total == total


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("we stay at home", "neither JSON nor a report: it has no day's line"),
        ("12:00-13:00 | meal | Lunch, A, ¥1\nDay 1:", "comes before the first day's line"),
        ("Day 1:\n12:00-13:00 lunch at A", "is not of the form HH:MM-HH:MM | type | what"),
        ("Day 1:\n12:00-13:00 | meal", "is not of the form"),
        ("Day 1:\n12:00-13:00 | meal | " + "x" * MAX_LINE_CHARS, f"more than {MAX_LINE_CHARS}"),
        ("".join(f"Day {number}:\n" for number in range(32)), "at most 31"),
        ("{", "Invalid JSON"),
        ('{"daily_plans": []}', "at least 1"),
        ('{"daily_plans": [{"activities": [{"details": {"cost": NaN}}]}]}', "finite"),
        ('{"daily_plans": 1}', "daily_plans"),
        ('{"a": ' + "[" * 90_000, "Invalid JSON"),
        ("x" * (MAX_BLOCK_CHARS + 1), "characters, more than"),
    ],
)
def test_what_is_no_plan_is_refused_and_says_why(block, message):
    with pytest.raises(PlanError, match=message):
        parse_plan(f"<plan>{block}</plan>", places=())


@pytest.mark.parametrize(
    "head", ["Day 1:\nCurrent City: A\nAccommodation: -\n", "Day 1:\nAccommodation: -\nCurrent City: A\n"]
)
def test_sums_before_and_after_the_days_are_no_hotel(head):
    sums = "**Budget Summary**:\n**Accommodation: 2000 RMB**\n**Meals: 9 RMB**\n**Total Estimated Budget: 2009 RMB**\n"
    for text in (f"{sums}{head}", f"{head}{sums}", f"{head}10:00-11:00 | buffer | x\n{sums}"):
        plan = parse_plan(f"<plan>{text}</plan>", places=())
        (day,) = plan.days
        assert (day.accommodation, day.current_city, plan.total) == (None, "A", 2009)
