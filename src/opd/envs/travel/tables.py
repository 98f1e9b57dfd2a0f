"""The SQL of the database: its tables, and the only queries that are ever made of it."""

from opd.envs.travel.entries import LANGUAGES, Language

DATABASE_FILES: dict[Language, str] = {language: f"travel_{language}.sqlite" for language in LANGUAGES}

CREATE = (
    "CREATE TABLE cities (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, x_km INTEGER NOT NULL,"
    " y_km INTEGER NOT NULL) STRICT",
    "CREATE TABLE places (kind TEXT NOT NULL, id INTEGER NOT NULL, city_id INTEGER NOT NULL, name TEXT NOT NULL,"
    " x_m INTEGER NOT NULL, y_m INTEGER NOT NULL, price INTEGER NOT NULL, category TEXT NOT NULL,"
    " stars INTEGER NOT NULL, features TEXT NOT NULL, opens INTEGER NOT NULL, closes INTEGER NOT NULL,"
    " closed_weekday INTEGER NOT NULL, visit_minutes INTEGER NOT NULL, PRIMARY KEY (city_id, kind, id),"
    " UNIQUE (city_id, name)) STRICT, WITHOUT ROWID",
    "CREATE TABLE trips (mode TEXT NOT NULL, id INTEGER NOT NULL, number TEXT NOT NULL UNIQUE,"
    " from_city_id INTEGER NOT NULL, to_city_id INTEGER NOT NULL, departs INTEGER NOT NULL, arrives INTEGER NOT NULL,"
    " weekdays INTEGER NOT NULL, price INTEGER NOT NULL,"
    " PRIMARY KEY (from_city_id, to_city_id, mode, id)) STRICT, WITHOUT ROWID",
)
INSERT_CITY = "INSERT INTO cities VALUES (?, ?, ?, ?)"
INSERT_PLACE = f"INSERT INTO places VALUES ({', '.join('?' * 14)})"
INSERT_TRIP = f"INSERT INTO trips VALUES ({', '.join('?' * 9)})"

_CITY = "SELECT id, name, x_km, y_km FROM cities"
CITY_BY_NAME = f"{_CITY} WHERE name = ?"
CITY_BY_ID = f"{_CITY} WHERE id = ?"
CITIES = f"{_CITY} ORDER BY id"
_PLACE = (
    "SELECT kind, id, city_id, name, x_m, y_m, price, category, stars, features, opens, closes, closed_weekday,"
    " visit_minutes FROM places"
)
PLACES_OF_KIND = f"{_PLACE} WHERE city_id = ? AND kind = ? ORDER BY id"
PLACE_BY_NAME = f"{_PLACE} WHERE city_id = ? AND name = ?"
_TRIP = "SELECT mode, id, number, from_city_id, to_city_id, departs, arrives, weekdays, price FROM trips"
TRIPS_BETWEEN = f"{_TRIP} WHERE from_city_id = ? AND to_city_id = ? AND mode = ? ORDER BY id"
TRIPS_FROM = f"{_TRIP} WHERE from_city_id = ? ORDER BY to_city_id, mode, id"
TRIP_BY_NUMBER = f"{_TRIP} WHERE number = ?"
FEATURE_SEPARATOR = "|"
