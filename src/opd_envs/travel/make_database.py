"""Writes the tool database of a seed, the same bytes each time, whole or not at all."""

import argparse
from pathlib import Path

from opd_envs.database_folder import new_folder, record_of, write_archive, write_manifest, written
from opd_envs.travel import database
from opd_envs.travel.database import FORMAT_VERSION, Manifest
from opd_envs.travel.entries import LANGUAGES, Language
from opd_envs.travel.world import MAX_CITIES, World, make_world

DEFAULT_NUM_CITIES = 240

EXAMPLE = """\
example:
  python -m opd_envs.travel.make_database --seed 42 --out databases/travel
    writes databases/travel/{travel_en.sqlite,travel_zh.sqlite,manifest.json}: what DATABASE_DIR names
  python -m opd_envs.travel.make_database --seed 42 --out databases/travel --archive travel.tar.gz
    also packs the folder and prints the archive's SHA-256, for cluster.toolDatabase.{url,sha256}"""


def write_database(folder: Path, *, seed: int, num_cities: int, replace: bool = False) -> Manifest:
    """Makes the world of a seed and writes it to a folder that must not hold another one, unless that is to be replaced.

    Raises:
        FileExistsError: see `new_folder`.
        ValueError: a number of cities that there are no names for.
    """
    with new_folder(folder, replace=replace) as scratch:
        world = make_world(seed=seed, num_cities=num_cities)
        for language, name in database.DATABASE_FILES.items():
            _write_file(scratch / name, world, language)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            seed=seed,
            num_cities=num_cities,
            num_rows={"cities": len(world.cities), "places": len(world.places), "trips": len(world.trips)},
            files={name: record_of(scratch / name) for name in database.DATABASE_FILES.values()},
        )
        write_manifest(scratch, manifest)
    return manifest


def _write_file(path: Path, world: World, language: Language) -> None:
    with written(path, database.CREATE) as connection:
        connection.executemany(
            database.INSERT_CITY, ((city.id, city.name, city.x_km, city.y_km) for city in world.cities_in(language))
        )
        places = sorted(world.places_in(language), key=lambda place: (place.city_id, place.kind, place.id))
        connection.executemany(
            database.INSERT_PLACE,
            (tuple(place._replace(features=database.FEATURE_SEPARATOR.join(place.features))) for place in places),  # type: ignore[arg-type]
        )
        trips = sorted(world.trips, key=lambda trip: (trip.from_city_id, trip.to_city_id, trip.mode, trip.id))
        connection.executemany(database.INSERT_TRIP, trips)


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m opd_envs.travel.make_database",
        description="Writes the travel database that the agent's tools read, in English and Chinese.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write: the DATABASE_DIR")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of everything in it (default: 42)")
    parser.add_argument(
        "--num-cities",
        type=int,
        default=DEFAULT_NUM_CITIES,
        metavar="N",
        help=f"2 to {MAX_CITIES} (default: {DEFAULT_NUM_CITIES})",
    )
    parser.add_argument("--archive", type=Path, metavar="FILE", help="also pack the folder as .tar.gz")
    parser.add_argument("--force", action="store_true", help="replace a database that is there")
    arguments = parser.parse_args(argv)
    try:
        manifest = write_database(
            arguments.out, seed=arguments.seed, num_cities=arguments.num_cities, replace=arguments.force
        )
    except (FileExistsError, ValueError) as error:
        parser.error(str(error))
    counts = ", ".join(f"{num} {table}" for table, num in manifest.num_rows.items())
    print(f"{arguments.out}: {counts}, each in {' and '.join(LANGUAGES)}")
    for name, record in manifest.files.items():
        print(f"  {name}: {record.num_bytes} bytes, sha256 {record.sha256}")
    if arguments.archive is not None:
        print(f"{arguments.archive}: sha256 {write_archive(arguments.out, arguments.archive)}")


if __name__ == "__main__":
    main()
