"""The tool database, read-only: typed records, with the prices of one episode laid over them."""

from __future__ import annotations

import hashlib
from copy import copy
from typing import Any, ClassVar, Literal

from opd_envs import LANGUAGES, Language
from opd_envs.database_folder import DatabaseFolder, FolderManifest
from opd_envs.travel.entries import City, Mode, Place, PlaceKind, Trip

DATABASE_FILES: dict[Language, str] = {language: f"travel_{language}.sqlite" for language in LANGUAGES}
_COLUMNS = {
    "cities": "id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, x_km INTEGER NOT NULL, y_km INTEGER NOT NULL",
    "places": "kind TEXT NOT NULL, id INTEGER NOT NULL, city_id INTEGER NOT NULL, name TEXT NOT NULL,"
    " x_m INTEGER NOT NULL, y_m INTEGER NOT NULL, price INTEGER NOT NULL, category TEXT NOT NULL,"
    " stars INTEGER NOT NULL, features TEXT NOT NULL, opens INTEGER NOT NULL, closes INTEGER NOT NULL,"
    " closed_weekday INTEGER NOT NULL, visit_minutes INTEGER NOT NULL, PRIMARY KEY (city_id, kind, id),"
    " UNIQUE (city_id, name)",
    "trips": "mode TEXT NOT NULL, id INTEGER NOT NULL, number TEXT NOT NULL UNIQUE, from_city_id INTEGER NOT NULL,"
    " to_city_id INTEGER NOT NULL, departs INTEGER NOT NULL, arrives INTEGER NOT NULL, weekdays INTEGER NOT NULL,"
    " price INTEGER NOT NULL, PRIMARY KEY (from_city_id, to_city_id, mode, id)",
}
"""By table, in the order of the records' fields; a city has no language there."""
CREATE = tuple(
    f"CREATE TABLE {table} ({columns}) STRICT{'' if table == 'cities' else ', WITHOUT ROWID'}"
    for table, columns in _COLUMNS.items()
)
FEATURE_SEPARATOR = "|"
PRICE_RANGES: dict[str, tuple[int, int]] = {
    "hotel": (100, 999),
    "restaurant": (20, 299),
    "attraction": (10, 199),
    "train": (50, 899),
    "flight": (200, 1999),
}
"""Lowest and highest price by kind. Stored and episode prices cover the whole range: knowing the database does not help."""


class Manifest(FolderManifest):
    """`manifest.json`; `num_rows` by table: every language has the same."""

    MADE_BY: ClassVar[str] = "python -m opd_envs.travel.make_database"

    kind: Literal["travel"] = "travel"
    format_version: Literal[1] = 1
    """Raise it with each change of tables or columns, so that an older folder is rejected."""
    seed: int
    num_cities: int


def episode_price(stored: int, kind: str, entry_id: int, seed: int | None) -> int:
    """Return the price of an entry in an episode.

    Args:
        stored: the price in the database, which holds where there is no episode seed.
        kind: a key of `PRICE_RANGES`.
        entry_id: the entry's id in its table; the same in every language.
        seed: the episode's; None means the stored price.
    """
    if seed is None:
        return stored
    low, high = PRICE_RANGES[kind]
    digest = hashlib.blake2b(f"{seed}:{kind}:{entry_id}".encode(), digest_size=8).digest()
    return low + int.from_bytes(digest) % (high - low + 1)


class Database(DatabaseFolder[Manifest]):
    """The records of a folder; every result has a fixed order, and ids are the same in every language."""

    MANIFEST = Manifest
    FILES = DATABASE_FILES
    episode_seed: int | None = None
    """Replaces the stored prices by an episode's; None means as stored."""

    def in_episode(self, seed: int | None) -> Database:
        """Return the same connections in another episode."""
        view = copy(self)
        view.episode_seed = seed
        return view

    def city(self, name: str) -> City | None:
        """Return the city of a name in either language, whose language is the name's; None where there is none."""
        for language in LANGUAGES:
            for city in self._cities(language, "name = ?", name):
                return city
        return None

    def known_city(self, name: str) -> City:
        """Return the city that a task names.

        Raises:
            KeyError: the database has no such city: the task is another database's.
        """
        city = self.city(name)
        if city is None:
            raise KeyError(f"the task names the city {name!r}, which the database does not have")
        return city

    def city_in(self, language: Language, city_id: int) -> City:
        """Return the city of an id, named in `language`."""
        (city,) = self._cities(language, "id = ?", city_id)
        return city

    def cities(self, language: Language) -> list[City]:
        """Return all cities by id."""
        return self._cities(language, "TRUE ORDER BY id")

    def places(self, city: City, kind: PlaceKind) -> list[Place]:
        """Return all entries of a kind in a city, by id, in the city's language."""
        rows = self._rows(city.language, "places", "city_id = ? AND kind = ? ORDER BY id", city.id, kind)
        return [self._place(row) for row in rows]

    def place(self, city: City, name: str) -> Place | None:
        """Return the entry of a name in the city, in the city's language, or None."""
        rows = self._rows(city.language, "places", "city_id = ? AND name = ?", city.id, name)
        return next(map(self._place, rows), None)

    def trips(self, origin: City, destination: City, mode: Mode) -> list[Trip]:
        """Return all trips of a mode between two cities, by id."""
        return [trip for trip in self.trips_from(origin) if (trip.to_city_id, trip.mode) == (destination.id, mode)]

    def trips_from(self, origin: City) -> list[Trip]:
        """Return all trips that leave a city."""
        rows = self._rows(origin.language, "trips", "from_city_id = ? ORDER BY to_city_id, mode, id", origin.id)
        return [self._trip(row) for row in rows]

    def trip(self, number: str) -> Trip | None:
        """Return the trip of a number, or None."""
        return next(map(self._trip, self._rows(LANGUAGES[0], "trips", "number = ?", number)), None)

    def _cities(self, language: Language, where: str, *values: object) -> list[City]:
        return [City(row[0], language, *row[1:]) for row in self._rows(language, "cities", where, *values)]

    def _place(self, row: tuple[Any, ...]) -> Place:
        place = Place(*row)
        features = row[9].split(FEATURE_SEPARATOR) if row[9] else []
        price = episode_price(place.price, place.kind, place.id, self.episode_seed)
        return place._replace(features=tuple(features), price=price)

    def _trip(self, row: tuple[Any, ...]) -> Trip:
        trip = Trip(*row)
        return trip._replace(price=episode_price(trip.price, trip.mode, trip.id, self.episode_seed))

    def _rows(self, language: Language, table: str, where: str, *values: object) -> list[tuple[Any, ...]]:
        # Table and condition are constants of this class; a model's words are parameters.
        return self._connections[language].execute(f"SELECT * FROM {table} WHERE {where}", values).fetchall()
