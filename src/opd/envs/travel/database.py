"""The tool database, opened so that nothing can write it: typed records in, one episode's prices laid over them."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opd.envs.sqlite_file import open_read_only
from opd.envs.travel import tables
from opd.envs.travel.entries import LANGUAGES, City, Language, Mode, Place, PlaceKind, Trip
from opd.envs.travel.episode import episode_price
from opd.envs.travel.manifest import Manifest, ManifestError, read_manifest


class Database:
    """The folder's SQLite files behind read-only connections; for one thread. Every result has a fixed order.

    Args:
        connections: one a language; the records have the same ids in all of them.
        episode_seed: lays that episode's prices over the stored ones (`opd.envs.travel.episode`); None: as stored.
    """

    def __init__(
        self, connections: Mapping[Language, sqlite3.Connection], manifest: Manifest, episode_seed: int | None = None
    ) -> None:
        self._connections = connections
        self.manifest = manifest
        self.episode_seed = episode_seed

    def in_episode(self, seed: int | None) -> "Database":
        """The same connections, seen in another episode."""
        return Database(self._connections, self.manifest, seed)

    def city(self, name: str) -> City | None:
        """The city of that name in either language, or None; the language of the name is the city's."""
        for language in LANGUAGES:
            row = self._one(language, tables.CITY_BY_NAME, (name,))
            if row is not None:
                return City(row[0], language, *row[1:])
        return None

    def city_in(self, language: Language, city_id: int) -> City:
        """The city of that id, named in `language`; KeyError where there is none."""
        row = self._one(language, tables.CITY_BY_ID, (city_id,))
        if row is None:
            raise KeyError(f"the database has no city {city_id}")
        return City(row[0], language, *row[1:])

    def cities(self, language: Language) -> list[City]:
        """All cities by id."""
        return [City(row[0], language, *row[1:]) for row in self._all(language, tables.CITIES, ())]

    def places(self, city: City, kind: PlaceKind) -> list[Place]:
        """All entries of a kind in a city, by id, in the city's language."""
        return [self._place(row) for row in self._all(city.language, tables.PLACES_OF_KIND, (city.id, kind))]

    def place(self, city: City, name: str) -> Place | None:
        """The entry of that name in the city, in the city's language, or None."""
        row = self._one(city.language, tables.PLACE_BY_NAME, (city.id, name))
        return None if row is None else self._place(row)

    def trips(self, origin: City, destination: City, mode: Mode) -> list[Trip]:
        """All trips of a mode between two cities, by id."""
        rows = self._all(origin.language, tables.TRIPS_BETWEEN, (origin.id, destination.id, mode))
        return [self._trip(row) for row in rows]

    def trips_from(self, origin: City) -> list[Trip]:
        """All trips that leave a city."""
        return [self._trip(row) for row in self._all(origin.language, tables.TRIPS_FROM, (origin.id,))]

    def trip(self, number: str) -> Trip | None:
        """The trip of that number, or None."""
        row = self._one(LANGUAGES[0], tables.TRIP_BY_NUMBER, (number,))
        return None if row is None else self._trip(row)

    def close(self) -> None:
        """Closes the connections, also for the views that `in_episode` gave."""
        for connection in self._connections.values():
            connection.close()

    def _place(self, row: tuple[Any, ...]) -> Place:
        place = Place(*row)
        features = row[9].split(tables.FEATURE_SEPARATOR) if row[9] else []
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
    """Opens a database folder for reading (`opd.envs.sqlite_file.open_read_only`).

    Raises:
        ManifestError: the folder is no database or is damaged (sizes are compared, hashes are not: `verify_folder`).
    """
    root = Path(folder)
    manifest = read_manifest(root)
    missing = [name for name in tables.DATABASE_FILES.values() if name not in manifest.files]
    if missing:
        raise ManifestError(f"{root}: its manifest lists no {', '.join(missing)}; make the database anew")
    return Database(
        {language: open_read_only(root / name) for language, name in tables.DATABASE_FILES.items()}, manifest
    )
