"""`python -m opd_envs.travel.make_database`: the tool database of a seed, the same bytes each time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opd.data.command_line import bare_parser
from opd_envs import LANGUAGES
from opd_envs.database_folder import new_folder, write_manifest, written
from opd_envs.travel.database import CREATE, DATABASE_FILES, FEATURE_SEPARATOR, Manifest
from opd_envs.travel.world import MAX_CITIES, World, make_world

DEFAULT_NUM_CITIES = 240
EXAMPLE = """\
  python -m opd_envs.travel.make_database --seed 42 --out databases/travel
    writes databases/travel/{travel_en.sqlite,travel_zh.sqlite,manifest.json}: the folder for agent.database_dir"""


def write_database(folder: Path, *, seed: int, num_cities: int) -> Manifest:
    """Make the world of a seed and write it to a new folder, whole or not at all.

    Raises:
        FileExistsError: the folder has content.
        ValueError: there are no names for so many cities.
    """
    with new_folder(folder) as scratch:
        for language, name in DATABASE_FILES.items():
            world = make_world(language, seed=seed, num_cities=num_cities)
            _write_file(scratch / name, world)
        return write_manifest(
            scratch,
            Manifest,
            DATABASE_FILES.values(),
            seed=seed,
            num_cities=num_cities,
            num_rows={table: len(rows) for table, rows in world._asdict().items()},
        )


def _write_file(path: Path, world: World) -> None:
    trips = sorted(world.trips, key=lambda trip: (trip.from_city_id, trip.to_city_id, trip.mode, trip.id))
    tables: dict[str, Sequence[tuple[Any, ...]]] = {
        "cities": [(city.id, city.name, city.x_km, city.y_km) for city in world.cities],
        "places": [
            tuple(place._replace(features=FEATURE_SEPARATOR.join(place.features)))  # type: ignore[arg-type]
            for place in sorted(world.places, key=lambda place: (place.city_id, place.kind, place.id))
        ],
        "trips": trips,
    }
    with written(path, CREATE) as connection:
        for table, rows in tables.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = bare_parser(
        module="opd_envs.travel.make_database",
        description="Writes the travel database that the agent's tools read, in English and Chinese.",
        example=EXAMPLE,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of everything in it (default: 42)")
    parser.add_argument(
        "--num-cities",
        type=int,
        default=DEFAULT_NUM_CITIES,
        metavar="N",
        help=f"2 to {MAX_CITIES} (default: {DEFAULT_NUM_CITIES})",
    )
    arguments = parser.parse_args(argv)
    try:
        manifest = write_database(arguments.out, seed=arguments.seed, num_cities=arguments.num_cities)
    except (FileExistsError, ValueError) as error:
        parser.error(str(error))
    counts = ", ".join(f"{num} {table}" for table, num in manifest.num_rows.items())
    print(f"{arguments.out}: {counts}, each in {' and '.join(LANGUAGES)}")


if __name__ == "__main__":
    main()
