"""Generated cases in the published layout, each with a plan that keeps every rule, and plans with one planted fault."""

import json
import random
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.opd_envs.deepplanning.published import Files, csv_text

from opd_envs.deepplanning.parts import ARCHIVES, QUERY_FILES
from opd_envs.deepplanning.scoring.judge import DIMENSIONS

Json = dict[str, Any]
WORDS = {
    "en": {"home": "Asterby", "goal": "Birchford", "via": "Cedar Hill", "station": "{} Station", "hotel": "Inn {}",
           "sight": "Park {}", "diner": "Diner {}", "all_day": "Open 24 Hours", "closed": "Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday",
           "weekdays": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday", "meal": "Lunch", "comma": ", ", "person": "/person", "night": "/room/night"},
    "zh": {"home": "甲城", "goal": "乙城", "via": "丙城", "station": "{}站", "hotel": "客栈{}",
           "sight": "公园{}", "diner": "餐馆{}", "all_day": "全天开放", "closed": "周一,周二,周三,周四,周五,周六,周日",
           "weekdays": "周一 周二 周三 周四 周五 周六 周日", "meal": "午餐", "comma": "，", "person": "/人", "night": "/间/晚"},
}  # fmt: skip
RULES = tuple(f"commonsense_{rule.__name__}" for rules in DIMENSIONS.values() for rule in rules)
FAULTY_DAY = 2
"""Faults are planted on the third day, the constraints' entries are on the second."""
SLACK = 5000
"""Of the budget above what the solution costs."""


class Spot(NamedTuple):
    name: str
    point: tuple[str, str]
    price: int


class World:
    """One case: its query, its files, its plans. The same seed gives the same case."""

    def __init__(self, language: str, seed: int) -> None:
        self.language, self.w, self.rng = language, WORDS[language], random.Random(f"{language}:{seed}")
        rng, w = self.rng, self.w
        self.case = str(seed)
        self.num_days, self.people, self.rooms = rng.randint(4, 6), rng.randint(1, 9), rng.randint(1, 4)
        self.weekday = rng.randint(1, 7)
        self.mode = rng.choice(["train", "flight"])
        self.arrives, self.leaves = rng.choice(["early", "mid", "late"]), rng.choice(["early", "mid", "late"])
        self._num_points = 0
        self.stations = {name: self.spot(w["station"].format(w[name])) for name in ("home", "goal", "via")}
        self.hotel = self.spot(w["hotel"].format("A"), rng.randint(100, 900))
        self.sights = [
            self.spot(w["sight"].format(n), rng.choice([0, rng.randint(1, 200)])) for n in range(2 * self.num_days)
        ]
        self.diners = [self.spot(w["diner"].format(n), rng.randint(20, 300)) for n in range(2 * self.num_days)]
        self.minutes: dict[tuple[tuple[str, str], tuple[str, str]], tuple[int, int]] = {}
        self.fares = {"out": rng.randint(80, 600), "back": rng.randint(80, 600)}
        # Twins share coordinates and price with an entry of the plan: a name is all that has to be changed.
        self.twins = {
            name: self.sights[2 * FAULTY_DAY]._replace(name=w["sight"].format(name))
            for name in ("night", "shut", "long")
        }
        self.late_diner = self.diners[2 * FAULTY_DAY]._replace(name=w["diner"].format("late"))
        self.others = {
            "hotel": self.hotel._replace(name=w["hotel"].format("B")),
            "attraction": self.sights[2]._replace(name=w["sight"].format("other")),
            "restaurant": self.diners[2]._replace(name=w["diner"].format("other")),
        }
        self.numbers = {"out": "K100", "back": "K200", "other": "K300", "away": "K400"}

    def spot(self, name: str, price: int = 0) -> Spot:
        self._num_points += 1
        return Spot(name, (f"31.{self._num_points:06d}", f"120.{self._num_points:06d}"), price)

    def way(self, a: Spot, b: Spot) -> tuple[int, int]:
        """Minutes and cost."""
        key = (a.point, b.point)
        if key not in self.minutes:
            minutes = self.rng.randint(8, 45)
            self.minutes[key] = (minutes, 0 if minutes < 20 else self.rng.randint(10, 80))
        return self.minutes[key]

    def times(self) -> dict[str, tuple[int, int]]:
        """Departure and arrival of the way out and the way back."""
        out = {"early": (450, 570), "mid": (600, 760), "late": (840, 1000)}[self.arrives]
        back = {"early": (500, 600), "mid": (840, 950), "late": (1080, 1190)}[self.leaves]
        return {"out": out, "back": back, "away": (back[0], max(back[1], 960)), "other": out}

    def query(self) -> Json:
        mode, plan = self.mode, self.plan()
        sights = [self.sights[2].name, self.sights[3].name]
        constraints = {
            f"{mode}_cheapest_direct": {f"outbound_{mode}_no": self.numbers["out"]},
            "hotel_cheapest_star": {"hotel_name": self.hotel.name},
            "restaurant_highest_rated": {"restaurant_name": self.diners[2].name},
            "attraction_must_visit_named": {"attraction_names": sights},
            "budget_constraint": {"max_budget": plan["budget_summary"]["total_estimated_budget"] + SLACK},
        }
        meta = {"org": self.w["home"], "dest": [self.w["goal"]], "days": self.num_days, "people_number": self.people,
                "room_number": self.rooms, "depart_weekday": self.weekday, "hard_constraints": constraints}  # fmt: skip
        return {"id": self.case, "query": f"{self.language} {self.case}", "meta_info": meta}

    def plan(self, fault: str = "") -> Json:
        """A plan in the benchmark's converted form that keeps every rule but `fault`."""
        days = [self._day(index, fault) for index in range(self.num_days)]
        if fault == "commonsense_valid_trip_duration":
            del days[FAULTY_DAY]
        plan = {"daily_plans": days, "budget_summary": {"total_estimated_budget": self._cost(days)}}
        _EDITS.get(fault, lambda _world, _plan: None)(self, plan)
        return plan

    def _day(self, index: int, fault: str) -> Json:
        w, times, day = self.w, self.times(), _Timeline(self)
        faulty = index == FAULTY_DAY
        last = index == self.num_days - 1
        city = w["goal"]
        if index == 0:
            city = f"from {w['home']} to {w['goal']}"
            day.ride("out", times["out"])
            day.wait(30)
        else:
            day.start(self.hotel, 510 if not last or self.leaves != "early" else 400)
        sights, diners = self.sights[2 * index : 2 * index + 2], self.diners[2 * index : 2 * index + 2]
        visits, num_meals = 2, 2
        if index == 0:
            visits, num_meals = {"early": (2, 2), "mid": (1, 1), "late": (0, 1)}[self.arrives]
        elif last:
            visits, num_meals = {"early": (0, 0), "mid": (1, 1), "late": (2, 1)}[self.leaves]
        if faulty and fault == "commonsense_essential_attraction_coverage":
            sights = sights[:1]
        if faulty and fault == "commonsense_diverse_attraction_options":
            sights = [sights[0], self.sights[2]]
        if faulty and fault == "commonsense_diverse_meal_options":
            diners = [diners[0], diners[0]]
        if faulty and fault == "commonsense_essential_meal_coverage":
            num_meals = 1
        late = 25 if faulty and fault == "commonsense_reasonable_transfer_time" else 0
        for number in range(2):
            if number < min(visits, len(sights)):
                day.go(sights[number], late if number else 0)
                day.do("attraction", sights[number], 90)
            if number < num_meals:
                if number:
                    day.wait(30 if len(sights) > 1 else 150)
                day.go(diners[number])
                short = faulty and number and fault == "commonsense_reasonable_meal_duration"
                day.do("meal", diners[number], 20 if short else 60)
        if last:
            day.go(self.stations["goal"])
            day.wait(times["back"][0] - day.now)
            day.ride("back", times["back"])
            return {"current_city": f"from {w['goal']} to {w['home']}", "activities": day.activities}
        day.go(self.hotel)
        day.do("hotel", self.hotel, 1380 - day.now)
        stay = {"name": self.hotel.name, "price_per_night": self.hotel.price}
        return {"current_city": city, "accommodation": stay, "activities": day.activities}

    def _cost(self, days: list[Json]) -> int:
        each = {"attraction": self.people, "meal": self.people, "travel_intercity_public": self.people,
                "travel_city": (self.people + 3) // 4}  # fmt: skip
        stays = sum(day["accommodation"]["price_per_night"] * self.rooms for day in days if "accommodation" in day)
        return stays + sum(
            each.get(a["type"], 0) * a["details"].get("cost", 0) for day in days for a in day["activities"]
        )

    def files(self) -> Files:
        """The seven files; call it when all plans have been made, which decide what ways there are."""
        for fault in FAULTS:
            self.plan(fault)
        rides = [("out", "home", "goal"), ("other", "home", "goal"), ("back", "goal", "home"), ("away", "goal", "via")]
        timetable = [self._ride(number, *ride) for number, ride in enumerate(rides, start=1)]
        train, flight = [], []
        for row in timetable:
            (train if self.mode == "train" else flight).append(row)
        # A timetable without rows would have no header: one ride of the other kind, at another price.
        spare = self._ride(9, "out", "home", "via") | {"price": "1", "number": "S1"}
        (flight if self.mode == "train" else train).append(spare)
        hotels = [
            {
                "name": spot.name,
                **_at(spot),
                "hotel_star": "3",
                "price": f"{spot.price}.0",
                "score": "4.5",
                "brand": "X",
            }
            for spot in (self.hotel, self.others["hotel"])
        ]
        sights = [self._sight(spot) for spot in (*self.sights, self.others["attraction"], *self.twins.values())]
        diners = [self._diner(spot) for spot in (*self.diners, self.others["restaurant"], self.late_diner)]
        spots = [*self.stations.values(), self.hotel, self.others["hotel"], *self.sights, *self.twins.values(),
                 self.others["attraction"], *self.diners, self.others["restaurant"], self.late_diner]  # fmt: skip
        return {
            "trains/trains.csv": [row | {"train_type": "High Speed", "train_no": row.pop("number")} for row in train],
            "flights/flights.csv": [
                row | {"airline": "X Air", "flight_no": row.pop("number"), "equip_size": "", "equip_type": "", "manufacturer": ""}
                for row in flight
            ],
            "hotels/hotels.csv": hotels,
            "attractions/attractions.csv": sights,
            "locations/locations_coords.csv": [{"poi_name": spot.name, **_at(spot), "poi_type": "x"} for spot in spots],
            "transportation/distance_matrix.csv": [
                {"origin": ",".join(a), "destination": ",".join(b), "distance_meters": str(300 * minutes),
                 "duration_minutes": str(minutes), "cost": str(cost)}
                for (a, b), (minutes, cost) in self.minutes.items()
            ],
            "restaurants/restaurants.csv": diners,
        }  # fmt: skip

    def _ride(self, route: int, name: str, start: str, end: str) -> dict[str, str]:
        leaves, arrives = self.times()[name]
        fare = self.fares["out" if name in ("out", "other") else "back"]
        return {
            "origin_city": self.w[start], "destination_city": self.w[end], "dep_date": "2025-11-12",
            "route_index": str(route), "segment_index": "1", "seat_class": "x", "seat_status": "9",
            "dep_station_code": start, "dep_station_name": self.stations[start].name,
            "arr_station_code": end, "arr_station_name": self.stations[end].name,
            "dep_datetime": f"2025-11-12 {_clock(leaves)}:00", "arr_datetime": f"2025-11-12 {_clock(arrives)}:00",
            "duration": str(arrives - leaves), "price": f"{fare}.0", "number": self.numbers[name],
        }  # fmt: skip

    def _sight(self, spot: Spot) -> dict[str, str]:
        w = self.w
        opens, closes, shut, shortest, longest = "08:00", "20:00", "", "1", "3"
        if spot == self.twins["night"]:
            opens, closes = "21:00", "05:00"
        elif spot == self.twins["shut"]:
            shut = w["closed"]
        elif spot == self.twins["long"]:
            shortest, longest = "6", "8"
        elif spot in self.sights:
            visited = self.sights.index(spot) // 2
            # Not on the day of the visit, nor a day before: a plan that lacks a day moves later visits forward.
            free = [day for day in range(7) if (day - self.weekday + 1 - visited) % 7 not in (0, 6, 1)]
            shut = w["weekdays"].split()[self.rng.choice(free)]
            if self.sights.index(spot) % 2 and self.sights.index(spot) != 3:
                opens = closes = w["all_day"]
        return {
            "attraction_name": spot.name, **_at(spot), "rating": "4.6", "opening_time": opens, "closing_time": closes,
            "closing_dates": shut, "min_visit_hours": shortest, "max_visit_hours": longest,
            "ticket_price": f"{spot.price}", "attraction_type": "x",
        }  # fmt: skip

    def _diner(self, spot: Spot) -> dict[str, str]:
        opens, closes = (
            ("02:00", "03:00") if spot == self.late_diner else ("09:30", self.rng.choice(["23:30", "24:00", "02:00"]))
        )
        latitude, longitude = self.sights[0].point
        return {
            "restaurant_name": spot.name, **_at(spot), "price_per_person": f"{spot.price}.0", "cuisine": "x",
            "opening_time": opens, "closing_time": closes, "rating": "4.3",
            "query_latitude": latitude, "query_longitude": longitude,
        }  # fmt: skip


class _Timeline:
    """A day's activities, each beginning where the one before ended."""

    def __init__(self, world: World) -> None:
        self.world, self.now, self.activities = world, 0, []
        self._here: Spot | None = None

    def start(self, here: Spot, now: int) -> None:
        self._here, self.now = here, now

    def ride(self, name: str, times: tuple[int, int]) -> None:
        world, ends = self.world, ("home", "goal") if name == "out" else ("goal", "home")
        a, b = (world.stations[end] for end in ends)
        self.now = times[0]
        self._add("travel_intercity_public", times[1] - times[0], mode=world.mode, number=world.numbers[name],
                  **{"from": a.name, "to": b.name}, cost=world.fares[name])  # fmt: skip
        self._here = b

    def go(self, spot: Spot, late: int = 0) -> None:
        minutes, cost = self.world.way(self._here, spot)
        self._add("travel_city", minutes + late, **{"from": self._here.name, "to": spot.name}, cost=cost)
        self._here = spot

    def do(self, what: str, spot: Spot, minutes: int) -> None:
        self._add(what, minutes, name=spot.name, **({} if what == "hotel" else {"cost": spot.price}))

    def wait(self, minutes: int) -> None:
        self._add("buffer", minutes)

    def _add(self, what: str, minutes: int, **details: object) -> None:
        slot = f"{_clock(self.now)}-{_clock(self.now + minutes)}"
        self.activities.append({"time_slot": slot, "type": what, "details": details})
        self.now += minutes


def _first(plan: Json, what: str, day: int = FAULTY_DAY) -> Json:
    return next(activity for activity in plan["daily_plans"][day]["activities"] if activity["type"] == what)


def _rename(plan: Json, old: str, new: str) -> None:
    text = json.dumps(plan, ensure_ascii=False).replace(
        json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False)
    )
    plan.clear()
    plan.update(json.loads(text))


def _named(twin: str):
    return lambda world, plan: _first(plan, "attraction")["details"].update(name=world.twins[twin].name)


def _elsewhere(world: World, plan: Json) -> None:
    last = plan["daily_plans"][-1]
    last["current_city"] = f"from {world.w['goal']} to {world.w['via']}"
    ride = last["activities"][-1]
    ride["time_slot"] = "-".join(_clock(minute) for minute in world.times()["away"])
    ride["details"].update(number=world.numbers["away"], to=world.stations["via"].name)


def _no_stay(world: World, plan: Json) -> None:
    del plan["daily_plans"][FAULTY_DAY]["accommodation"]
    plan["budget_summary"]["total_estimated_budget"] -= world.hotel.price * world.rooms


def _dearer(world: World, plan: Json) -> None:
    _first(plan, "travel_city")["details"]["cost"] += SLACK + 1
    plan["budget_summary"]["total_estimated_budget"] += (SLACK + 1) * ((world.people + 3) // 4)


def _overlap(_world: World, plan: Json) -> None:
    visit = _first(plan, "attraction")
    start, end = (int(time[:2]) * 60 + int(time[3:]) for time in visit["time_slot"].split("-"))
    slot = f"{_clock(start + 10)}-{_clock(end - 10)}"
    plan["daily_plans"][FAULTY_DAY]["activities"].append({"time_slot": slot, "type": "buffer", "details": {}})
    hotel = plan["daily_plans"][FAULTY_DAY]["activities"].pop(-2)
    plan["daily_plans"][FAULTY_DAY]["activities"].append(hotel)


def _one_more(details: Json, key: str) -> None:
    details[key] += 1


_EDITS = {
    "commonsense_closed_loop_route_structure": _elsewhere,
    "commonsense_seamless_intercity_transfers": lambda w, p: p["daily_plans"][FAULTY_DAY].update(current_city=w.w["via"]),
    "commonsense_validated_accommodation": lambda _, p: _one_more(p["daily_plans"][FAULTY_DAY]["accommodation"], "price_per_night"),
    "commonsense_validated_attractions": lambda _, p: _one_more(_first(p, "attraction")["details"], "cost"),
    "commonsense_validated_meals": lambda _, p: _first(p, "meal")["details"].update(name="Nowhere"),
    "commonsense_validated_transportation": lambda w, p: p["daily_plans"][-1]["activities"][-1]["details"].update(number="X0"),
    "commonsense_traceable_accommodation": _no_stay,
    "commonsense_ends_with_accommodation": lambda _, p: p["daily_plans"][FAULTY_DAY]["activities"].append(
        {"time_slot": "23:00-23:10", "type": "buffer", "details": {}}
    ),
    "commonsense_no_time_overlaps": _overlap,
    "commonsense_attraction_visit_within_opening_hours": _named("night"),
    "commonsense_dining_within_service_hours": lambda w, p: _first(p, "meal")["details"].update(name=w.late_diner.name),
    "commonsense_avoidance_of_closure_days": _named("shut"),
    "commonsense_reasonable_duration_at_attractions": _named("long"),
    "commonsense_cost_calculation_correctness": lambda _, p: p["budget_summary"].update(
        total_estimated_budget=round(p["budget_summary"]["total_estimated_budget"] * 1.2)
    ),
    "hard_hotel_cheapest_star": lambda w, p: _rename(p, w.hotel.name, w.others["hotel"].name),
    "hard_restaurant_highest_rated": lambda w, p: _first(p, "meal", 1)["details"].update(name=w.others["restaurant"].name),
    "hard_attraction_must_visit_named": lambda w, p: _first(p, "attraction", 1)["details"].update(name=w.others["attraction"].name),
    "hard_ride": lambda w, p: _first(p, "travel_intercity_public", 0)["details"].update(number=w.numbers["other"]),
    "hard_budget": _dearer,
}  # fmt: skip
FAULTS = (
    *RULES,
    "hard_hotel_cheapest_star",
    "hard_restaurant_highest_rated",
    "hard_attraction_must_visit_named",
    "hard_ride",
    "hard_budget",
)


def as_report(world: World, plan: Json) -> str:
    """The plan in the layout that the prompt asks for."""
    w, comma = world.w, world.w["comma"]

    def line(activity: Json) -> str:
        d, what = activity["details"], activity["type"]
        price = f"￥{d.get('cost')}"
        text = {
            "travel_intercity_public": lambda: (
                f"{d['mode']} {d['number']}{comma}{d['from']} - {d['to']}{comma}{price}{w['person']}"
            ),
            "travel_city": lambda: f"{d['from']} - {d['to']}{comma}1.5km{comma}20min{comma}{price}",
            "attraction": lambda: f"{d['name']}{comma}{price}{w['person']}",
            "meal": lambda: f"{w['meal']}{comma}{d['name']}{comma}{price}{w['person']}",
            "hotel": lambda: f"x{comma}{d['name']}",
            "buffer": lambda: "x",
        }[what]()
        return f"{activity['time_slot']} | {what} | {text}"

    lines = []
    for number, day in enumerate(plan["daily_plans"], start=1):
        stay = day.get("accommodation")
        where = "-" if stay is None else f"{stay['name']}{comma}￥{stay['price_per_night']}{w['night']}"
        lines += [f"Day {number}:", f"Current City: {day['current_city']}", f"Accommodation: {where}"]
        lines += [*map(line, day["activities"]), ""]
    total = plan["budget_summary"]["total_estimated_budget"]
    lines += [
        "**Budget Summary**:",
        "   **Accommodation: 1 RMB**. 1 room",
        f"   **Total Estimated Budget: {total} RMB**",
    ]
    return "<plan>\n" + "\n".join(lines) + "\n</plan>"


def as_json(plan: Json) -> str:
    """The plan in the converted form."""
    return f"<plan>{json.dumps(plan, ensure_ascii=False)}</plan>"


def write_worlds(folder: Path, worlds: Iterable[World]) -> Path:
    """A data folder with archives and queries of these cases."""
    by_language: dict[str, list[World]] = {}
    for world in worlds:
        by_language.setdefault(world.language, []).append(world)
    for language, found in by_language.items():
        path = folder / ARCHIVES[language]
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for world in found:
                for file, rows in world.files().items():
                    archive.writestr(f"database_{language}/id_{world.case}/{file}", csv_text(rows))
        queries = folder / QUERY_FILES[language]
        queries.parent.mkdir(parents=True, exist_ok=True)
        queries.write_text(json.dumps([world.query() for world in found], ensure_ascii=False))
    return folder


def _at(spot: Spot) -> dict[str, str]:
    return dict(zip(("latitude", "longitude"), spot.point, strict=True))


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
