"""DeepPlanning's published layout with invented entries, in place of the archives."""

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from opd_envs.deepplanning.layout import ARCHIVES, QUERY_FILES

Rows = list[dict[str, str]]
Files = dict[str, Rows]
"""Rows by the file's path below a case's folder."""

WORDS = {
    "en": {
        "home": "Asterby", "goal": "Birchford", "via": "Cedar Hill", "station": "{} Station", "airport": "{} Airport",
        "second": "Second Class Seat", "first": "First Class Seat", "economy": "Economy Class",
        "inn": "Lark Inn", "palace": "Heron Palace", "brand": "Ji Hotel", "other_brand": "Hilton",
        "pool": "Swimming Pool", "gym": "Gym", "mill": "Old Mill", "garden": "Fern Garden",
        "culture": "Historical and Cultural", "nature": "Natural Scenery", "diner": "Pear Diner", "grill": "Oak Grill",
        "birthday": "Birthday Package", "view": "Window Seats", "cuisine": "Noodles",
    },
    "zh": {
        "home": "甲城", "goal": "乙城", "via": "丙城", "station": "{}站", "airport": "{}机场",
        "second": "二等座", "first": "一等座", "economy": "经济舱",
        "inn": "云雀客栈", "palace": "苍鹭大酒店", "brand": "全季", "other_brand": "希尔顿",
        "pool": "游泳池", "gym": "健身房", "mill": "老磨坊", "garden": "蕨园",
        "culture": "历史文化", "nature": "自然风光", "diner": "梨子餐馆", "grill": "橡树烤肉",
        "birthday": "生日套餐", "view": "靠窗座位", "cuisine": "面食",
    },
}  # fmt: skip
DATE = "2025-11-12"
POINTS = {
    "station": ("31.200000", "120.500000"),
    "inn": ("31.210000", "120.510000"),
    "palace": ("31.220000", "120.520000"),
    "mill": ("31.230000", "120.530000"),
    "garden": ("31.240000", "120.540000"),
    "diner": ("31.250000", "120.550000"),
    "grill": ("31.260000", "120.560000"),
}


def files(language: str, case: str) -> Files:
    """Return the seven files of a case; the inn's price differs by case."""
    w = WORDS[language]
    stations = {name: w["station"].format(w[name]) for name in ("home", "goal", "via")}
    airports = {name: w["airport"].format(w[name]) for name in ("home", "goal")}
    trains = [
        _segment(w, stations, 1, 1, "home", "goal", ("08:00", "09:30"), 90, "second", "6", "150.5", "G11"),
        _segment(w, stations, 2, 1, "home", "via", ("10:00", "11:00"), 60, "second", "", "99.0", "G21"),
        _segment(w, stations, 2, 2, "via", "goal", ("11:30", "12:10"), 40, "second", "2", "99.0", "G22"),
        _segment(w, stations, 10, 1, "home", "goal", ("07:00", "08:20"), 80, "first", "3", "240.0", "G31"),
    ]
    flight = _segment(w, airports, 1, 1, "home", "goal", ("13:00", "14:05"), 65, "economy", "", "410.0", "")
    flight = {key: value for key, value in flight.items() if not key.startswith("train_")} | {
        "airline": "Heron Air", "flight_no": "HA101", "equip_size": "M", "equip_type": "H20", "manufacturer": "Heron",
    }  # fmt: skip
    hotels = [
        {
            "name": w["inn"], "address": "1 Elm Street", **_at("inn"), "decoration_time": "2023", "hotel_star": "3",
            "price": f"30{case}.0", "score": "4.5", "brand": w["brand"], "services": f"{w['pool']};{w['gym']}",
            "city": w["goal"],
        },
        {
            "name": w["palace"], "address": "2 Elm Street", **_at("palace"), "decoration_time": "2025",
            "hotel_star": "5", "price": "900.0", "score": "4.9", "brand": w["other_brand"], "services": "", "city": w["goal"],
        },
    ]  # fmt: skip
    attractions = [
        _sight(w, "B1", "mill", "culture", "09:00", "17:00", "40"), _sight(w, "B2", "garden", "nature", "24h", "24h", "0")
    ]  # fmt: skip
    named = {**{name: w[name] for name in POINTS if name != "station"}, "station": stations["goal"]}
    locations = [{"poi_name": named[name], **_at(name), "poi_type": "x"} for name in POINTS]
    distances = [
        {
            "origin": ",".join(start), "destination": ",".join(end), "distance_meters": str(1000 * (1 + abs(i - j))),
            "duration_minutes": str(10 + abs(i - j)), "cost": str(0 if abs(i - j) < 2 else 9 + i),
        }
        for i, start in enumerate(POINTS.values()) for j, end in enumerate(POINTS.values()) if i != j
    ]  # fmt: skip
    restaurants = [
        _restaurant(w, "R1", "diner", "mill", "60", f"{w['birthday']};{w['view']}"),
        _restaurant(w, "R2", "grill", "mill", "80", ""),
        _restaurant(w, "R1", "diner", "garden", "60", f"{w['birthday']};{w['view']}"),
    ]
    return {
        "trains/trains.csv": trains,
        "flights/flights.csv": [flight],
        "hotels/hotels.csv": hotels,
        "attractions/attractions.csv": attractions,
        "locations/locations_coords.csv": locations,
        "transportation/distance_matrix.csv": distances,
        "restaurants/restaurants.csv": restaurants,
    }


def _segment(w, stations, route, segment, start, end, times, minutes, seat, status, price, number) -> dict[str, str]:
    return {
        "origin_city": w["home"], "destination_city": w["goal"], "dep_date": DATE, "route_index": str(route),
        "segment_index": str(segment), "seat_class": w[seat], "seat_status": status,
        "dep_station_code": start[0].upper(), "dep_station_name": stations[start],
        "arr_station_code": end[0].upper(), "arr_station_name": stations[end],
        "dep_datetime": f"{DATE} {times[0]}:00", "arr_datetime": f"{DATE} {times[1]}:00",
        "duration": str(minutes), "price": price, "train_type": "High Speed", "train_no": number,
    }  # fmt: skip


def _sight(w, number, name, kind, opens, closes, price) -> dict[str, str]:
    return {
        "attraction_id": number, "attraction_name": w[name], "city": w["goal"], "address": f"{number} Lane", **_at(name),
        "description": f"<b>{w[name]}</b>", "rating": "4.6", "opening_time": opens, "closing_time": closes,
        "closing_dates": "", "min_visit_hours": "1.5", "max_visit_hours": "3", "ticket_price": price,
        "attraction_type": w[kind],
    }  # fmt: skip


def _restaurant(w, number, name, near, price, tags) -> dict[str, str]:
    latitude, longitude = POINTS[near]
    return {
        "restaurant_id": number, "restaurant_name": w[name], **_at(name), "price_per_person": price,
        "cuisine": w["cuisine"], "opening_time": "10:00", "closing_time": "22:00", "nearby_attraction_name": w[near],
        "rating": "4.3", "tags": tags, "query_latitude": latitude, "query_longitude": longitude,
    }  # fmt: skip


def _at(name: str) -> dict[str, str]:
    return dict(zip(("latitude", "longitude"), POINTS[name], strict=True))


def csv_text(rows: Rows) -> str:
    """Return the rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_zip(
    path: Path,
    language: str,
    *,
    cases: Iterable[str] = ("0", "1"),
    change: Callable[[dict[str, bytes]], object] = lambda members: None,
) -> Path:
    """Write `database_LANGUAGE.zip`; `change` may damage the members, by name, before they are packed."""
    members = {
        f"database_{language}/id_{case}/{file}": csv_text(rows).encode()
        for case in cases
        for file, rows in files(language, case).items()
    }
    change(members)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def query(language: str, case: str, **constraints: dict[str, object]) -> dict[str, object]:
    """Return a published query."""
    w = WORDS[language]
    meta = {"org": w["home"], "dest": [w["goal"]], "days": 2, "people_number": 1, "hard_constraints": constraints}
    return {"id": case, "query": f"{w['home']} → {w['goal']}, {case}", "meta_info": meta}


def write_data(folder: Path, *, languages: Iterable[str] = ("en", "zh"), cases: Iterable[str] = ("0", "1")) -> Path:
    """Write a data folder with the archives and query files of the languages."""
    numbers = list(cases)
    for language in languages:
        write_zip(folder / ARCHIVES[language], language, cases=numbers)
        constraint = {"constraint_type": "superlative_cheapest_star", "hotel_name": WORDS[language]["inn"]}
        queries = [query(language, case, hotel_cheapest_star=constraint) for case in numbers]
        path = folder / QUERY_FILES[language]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(queries, ensure_ascii=False))
    return folder
