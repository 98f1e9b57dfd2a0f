"""The tool database, opened so that nothing can write it: typed records in, one episode's prices laid over them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from opd_envs import database_folder
from opd_envs.database_folder import FolderManifest, ManifestError, open_read_only
from opd_envs.travel.entries import LANGUAGES, City, Language, Mode, Place, PlaceKind, Trip

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


FORMAT_VERSION = 1
"""Raised whenever a table or the meaning of a column changes: an older folder is then refused, not misread."""


class Manifest(FolderManifest):
    """`manifest.json`; `num_rows` by table: every language has the same."""

    model_config = ConfigDict(extra="forbid")

    MADE_BY: ClassVar[str] = "python -m opd_envs.travel.make_database"
    VERSION: ClassVar[int | None] = FORMAT_VERSION

    seed: int
    num_cities: int


def read_manifest(folder: Path) -> Manifest:
    """See `database_folder.read_manifest`."""
    return database_folder.read_manifest(folder, Manifest)


def verify_folder(folder: Path) -> Manifest:
    """See `database_folder.verify_folder`."""
    return database_folder.verify_folder(folder, Manifest)


# Whatever the stored price, an episode's is drawn from its kind's whole range: knowing the database does not help.
PRICE_RANGES: dict[str, tuple[int, int]] = {
    "hotel": (100, 999),
    "restaurant": (20, 299),
    "attraction": (10, 199),
    "train": (50, 899),
    "flight": (200, 1999),
}
"""Lowest and highest price by kind, both included; the generator draws the stored prices from the same ranges."""


def episode_price(stored: int, kind: str, entry_id: int, seed: int | None) -> int:
    """The price of an entry in an episode.

    Args:
        stored: the price in the database, which is the answer where there is no episode seed.
        kind: a key of `PRICE_RANGES`.
        entry_id: the entry's id in its table; the same in every language.
        seed: the episode's; None: no overlay.
    """
    if seed is None:
        return stored
    low, high = PRICE_RANGES[kind]
    digest = hashlib.blake2b(f"{seed}:{kind}:{entry_id}".encode(), digest_size=8).digest()
    return low + int.from_bytes(digest) % (high - low + 1)


class Database:
    """The folder's SQLite files behind read-only connections; for one thread. Every result has a fixed order.

    Args:
        connections: one a language; the records have the same ids in all of them.
        episode_seed: lays that episode's prices over the stored ones (`opd_envs.travel.database`); None: as stored.
    """

    def __init__(
        self, connections: Mapping[Language, sqlite3.Connection], manifest: Manifest, episode_seed: int | None = None
    ) -> None:
        self._connections = connections
        self.manifest = manifest
        self.episode_seed = episode_seed

    def in_episode(self, seed: int | None) -> Database:
        """The same connections, seen in another episode."""
        return Database(self._connections, self.manifest, seed)

    def city(self, name: str) -> City | None:
        """The city of that name in either language, or None; the language of the name is the city's."""
        for language in LANGUAGES:
            row = self._one(language, CITY_BY_NAME, (name,))
            if row is not None:
                return City(row[0], language, *row[1:])
        return None

    def city_in(self, language: Language, city_id: int) -> City:
        """The city of that id, named in `language`; KeyError where there is none."""
        row = self._one(language, CITY_BY_ID, (city_id,))
        if row is None:
            raise KeyError(f"the database has no city {city_id}")
        return City(row[0], language, *row[1:])

    def cities(self, language: Language) -> list[City]:
        """All cities by id."""
        return [City(row[0], language, *row[1:]) for row in self._all(language, CITIES, ())]

    def places(self, city: City, kind: PlaceKind) -> list[Place]:
        """All entries of a kind in a city, by id, in the city's language."""
        return [self._place(row) for row in self._all(city.language, PLACES_OF_KIND, (city.id, kind))]

    def place(self, city: City, name: str) -> Place | None:
        """The entry of that name in the city, in the city's language, or None."""
        row = self._one(city.language, PLACE_BY_NAME, (city.id, name))
        return None if row is None else self._place(row)

    def trips(self, origin: City, destination: City, mode: Mode) -> list[Trip]:
        """All trips of a mode between two cities, by id."""
        rows = self._all(origin.language, TRIPS_BETWEEN, (origin.id, destination.id, mode))
        return [self._trip(row) for row in rows]

    def trips_from(self, origin: City) -> list[Trip]:
        """All trips that leave a city."""
        return [self._trip(row) for row in self._all(origin.language, TRIPS_FROM, (origin.id,))]

    def trip(self, number: str) -> Trip | None:
        """The trip of that number, or None."""
        row = self._one(LANGUAGES[0], TRIP_BY_NUMBER, (number,))
        return None if row is None else self._trip(row)

    def close(self) -> None:
        """Closes the connections, also for the views that `in_episode` gave."""
        for connection in self._connections.values():
            connection.close()

    def _place(self, row: tuple[Any, ...]) -> Place:
        place = Place(*row)
        features = row[9].split(FEATURE_SEPARATOR) if row[9] else []
        price = episode_price(place.price, place.kind, place.id, self.episode_seed)
        return place._replace(features=tuple(features), price=price)

    def _trip(self, row: tuple[Any, ...]) -> Trip:
        trip = Trip(*row)
        return trip._replace(price=episode_price(trip.price, trip.mode, trip.id, self.episode_seed))

    def _one(self, language: Language, query: str, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        rows = self._all(language, query, arguments)
        return rows[0] if rows else None

    def _all(self, language: Language, query: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._connections[language].execute(query, arguments).fetchall()


def open_database(folder: str | Path) -> Database:
    """Opens a database folder for reading (`opd_envs.database_folder.open_read_only`).

    Raises:
        ManifestError: the folder is no database or is damaged (sizes are compared, hashes are not: `verify_folder`).
    """
    root = Path(folder)
    manifest = read_manifest(root)
    missing = [name for name in DATABASE_FILES.values() if name not in manifest.files]
    if missing:
        raise ManifestError(f"{root}: its manifest lists no {', '.join(missing)}; make the database anew")
    return Database({language: open_read_only(root / name) for language, name in DATABASE_FILES.items()}, manifest)
