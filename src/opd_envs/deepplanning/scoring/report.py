"""A plan out of a model's text: JSON of the converted form, or a report in the prompt's layout, line by line."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from opd_envs.deepplanning.scoring.plan import ATTRACTION, BUFFER, HOTEL, INTERCITY, MEAL, TRAVEL_CITY, Plan
from opd_envs.scoring import PlanError, find_plan, read_plan

MAX_LINE_CHARS = 600
_DAY = re.compile(r"(?:day\s?|第\s?(?=[0-9]{1,3}\s?天))([0-9]{1,3})(?:\s?天)?\s?(?:[:：(（,，–—-].*)?", re.IGNORECASE)
_CITY = re.compile(r"(?:current city|当前城市)\s*[:：]\s*(.*)", re.IGNORECASE)
_STAY = re.compile(r"(?:accommodation|住宿)\s*[:：]\s*(.*)", re.IGNORECASE)
_TOTAL = re.compile(
    r"(?:total estimated budget|总估算预算|总预算)[^:：]{0,60}[:：][^0-9:：-]{0,20}([0-9][0-9,]*(?:\.[0-9]+)?)",
    re.IGNORECASE,
)
_TIMES = re.compile(r"([0-9]{1,2}:[0-9]{2})\s*[-–—~～]\s*([0-9]{1,2}:[0-9]{2})")
_PRICE = re.compile(
    r"[,，]\s?(?:[¥￥]|RMB|CNY)?\s?([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|free|免费)"
    r"\s?(?:元|yuan|RMB|CNY)?(?:\s?/\s?[^\s,，/]+)*$",
    re.IGNORECASE,
)
_MEASURE = re.compile(r"[,，]\s?[0-9.]+\s?(?:km|m|公里|千米|米|min|mins|minutes|分钟|h|hours?|小时)$", re.IGNORECASE)
_COMMA = re.compile(r"[,，]\s?")
_BAR = re.compile(r"\s?[|｜]\s?")
_DASH = re.compile(r"\s?(?:->|→|-|–|—)\s?")
_NO_STAY = {"", "-", "–", "—"}
_FREE = {"free", "免费"}
_FENCE = re.compile(r"```(?:json)?")


def parse_plan(text: str, *, places: Collection[str]) -> Plan:
    """Return the plan in the last `<plan>` block: JSON where it begins with a brace, else a report.

    Args:
        text: the model's text.
        places: names that divide a route into origin and destination.

    Raises:
        PlanError: there is no block; the message names the first unreadable part of one.
    """
    block = find_plan(text)
    bare = _FENCE.sub("", block).strip()
    return read_plan(Plan, bare if bare.startswith("{") else read_report(block, places))


def read_report(text: str, places: Collection[str]) -> dict[str, Any]:
    """Return the report as JSON of the converted form.

    Lines that begin with a time are activities; the first words show lines of day, city, accommodation and total. All
    other lines (headings, sums, remarks) are not scored.

    Raises:
        PlanError: an activity before the first day or not in its form, or one beyond `MAX_LINE_CHARS`.
    """
    days: list[dict[str, Any]] = []
    newest = -1
    budget: dict[str, Any] | None = None
    for raw in text.splitlines():
        line = " ".join(raw.replace("**", "").split()).lstrip("-*•# ")
        times = _TIMES.match(line)
        if len(line) > MAX_LINE_CHARS:
            if times is None:
                continue  # a remark: no scored line is as long
            raise PlanError(f"a line has {len(line)} characters, more than {MAX_LINE_CHARS}: {line[:60]!r}")
        if times is None and (head := _DAY.fullmatch(line)):
            if int(head[1]) > newest:
                newest = int(head[1])
                days.append({"activities": []})
        elif times is None and (total := _TOTAL.match(line)):
            budget = {"total_estimated_budget": _number(total[1])}
        elif times is not None and not days:
            raise PlanError(f"{line[:60]!r} comes before the first day's line (Day 1:)")
        elif times is not None:
            days[-1]["activities"].append(_activity(line, times, places))
        elif days and not days[-1]["activities"]:  # later, `Accommodation: 2000 RMB` is a sum
            _head(days[-1], line)
    if not days:
        raise PlanError("the plan is neither JSON nor a report: it has no day's line (Day 1:)")
    return {"daily_plans": days, "budget_summary": budget}


def _head(day: dict[str, Any], line: str) -> None:
    """Read a line before the first activity; the first of each kind counts."""
    if city := _CITY.match(line):
        day.setdefault("current_city", city[1])
    elif stay := _STAY.match(line):
        name, price = _priced(stay[1])
        day.setdefault("accommodation", None if name in _NO_STAY else {"name": name, "price_per_night": price})


def _activity(line: str, times: re.Match[str], places: Collection[str]) -> dict[str, Any]:
    parts = _BAR.split(line[times.end() :].lstrip(), maxsplit=2)
    if len(parts) < 3 or parts[0]:
        raise PlanError(f"{line[:60]!r} is not of the form HH:MM-HH:MM | type | what")
    activity_type = parts[1].lower()
    read = _DETAILS.get(activity_type, lambda _text, _places: {})
    return {"time_slot": f"{times[1]}-{times[2]}", "type": activity_type, "details": read(parts[2], places)}


def _trip(text: str, places: Collection[str]) -> dict[str, Any]:
    what, rest = _first(text)
    mode, _, number = what.rpartition(" ")
    route, cost = _priced(rest)
    return {"mode": mode, "number": number, **_route(route, places), "cost": cost}


def _way(text: str, places: Collection[str]) -> dict[str, Any]:
    route, cost = _priced(text)
    for _ in ("duration", "distance"):
        route = _MEASURE.sub("", route)
    return {**_route(route, places), "cost": cost}


def _attraction(text: str, _places: Collection[str]) -> dict[str, Any]:
    name, cost = _priced(text)
    return {"name": name, "cost": cost}


def _meal(text: str, places: Collection[str]) -> dict[str, Any]:
    return _attraction(_first(text)[1], places)


def _hotel(text: str, _places: Collection[str]) -> dict[str, Any]:
    return {"name": _first(text)[1]}


_DETAILS: Mapping[str, Callable[[str, Collection[str]], dict[str, Any]]] = {
    INTERCITY: _trip,
    TRAVEL_CITY: _way,
    ATTRACTION: _attraction,
    MEAL: _meal,
    HOTEL: _hotel,
    BUFFER: lambda _text, _places: {},
}


def _first(text: str) -> tuple[str, str]:
    """Return the text before the first comma, and the rest."""
    parts = _COMMA.split(text, maxsplit=1)
    return parts[0], parts[1] if len(parts) > 1 else ""


def _priced(text: str) -> tuple[str, float | None]:
    """Return the text before the price at the end, and the price; None where there is none."""
    text = text.strip()
    found = _PRICE.search(text)
    if found is None:
        return text, None
    return text[: found.start()].strip(), 0 if found[1].lower() in _FREE else _number(found[1])


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() else value


def _route(text: str, places: Collection[str]) -> dict[str, str]:
    """Return origin and destination, split at the dash between two known places, else at the first between spaces."""
    splits = [(text[: dash.start()].strip(), text[dash.end() :].strip()) for dash in _DASH.finditer(text)]
    known = [ends for ends in splits if ends[0] in places and ends[1] in places]
    spaced = [ends for ends, dash in zip(splits, _DASH.finditer(text), strict=True) if dash[0] != dash[0].strip()]
    origin, destination = next(iter([*known, *spaced, *splits]), (text, ""))
    return {"from": origin, "to": destination}
