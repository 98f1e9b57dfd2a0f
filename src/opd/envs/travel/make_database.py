"""Writes the tool database of a seed, the same bytes each time, whole or not at all."""

import argparse
import gzip
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
from pathlib import Path

from opd.envs.travel import tables
from opd.envs.travel.entries import LANGUAGES, Language
from opd.envs.travel.manifest import FORMAT_VERSION, MANIFEST_FILE, Manifest, manifest_text, record_of
from opd.envs.travel.world import MAX_CITIES, World, make_world
from opd.store.durable import hash_file

DEFAULT_NUM_CITIES = 240
_SQLITE_VERSION_OFFSET = 96
"""SQLite writes the version of the library that wrote the file there; it is informational only."""

EXAMPLE = """\
example:
  python -m opd.agent.make_database --seed 42 --out databases/travel
    writes databases/travel/{travel_en.sqlite,travel_zh.sqlite,manifest.json}: what DATABASE_DIR names
  python -m opd.agent.make_database --seed 42 --out databases/travel --archive travel.tar.gz
    also packs the folder and prints the archive's SHA-256, for cluster.toolDatabase.{url,sha256}"""


def write_database(folder: Path, *, seed: int, num_cities: int) -> Manifest:
    """Makes the world of a seed and writes it to a folder that must not hold another one.

    Raises:
        FileExistsError: the folder is there and not empty.
        ValueError: a number of cities that there are no names for.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"--out = {folder}: is not empty; give a new folder, or --force to replace the database in it"
        )
    world = make_world(seed=seed, num_cities=num_cities)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for language, name in tables.DATABASE_FILES.items():
            _write_file(scratch / name, world, language)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            seed=seed,
            num_cities=num_cities,
            num_rows={"cities": len(world.cities), "places": len(world.places), "trips": len(world.trips)},
            files={name: record_of(scratch / name) for name in tables.DATABASE_FILES.values()},
        )
        (scratch / MANIFEST_FILE).write_text(manifest_text(manifest), encoding="utf-8")
        scratch.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return manifest


def _write_file(path: Path, world: World, language: Language) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 4096")
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("BEGIN")
    for statement in tables.CREATE:
        connection.execute(statement)
    connection.executemany(
        tables.INSERT_CITY, ((city.id, city.name, city.x_km, city.y_km) for city in world.cities_in(language))
    )
    places = sorted(world.places_in(language), key=lambda place: (place.city_id, place.kind, place.id))
    connection.executemany(
        tables.INSERT_PLACE,
        (tuple(place._replace(features=tables.FEATURE_SEPARATOR.join(place.features))) for place in places),  # type: ignore[arg-type]
    )
    trips = sorted(world.trips, key=lambda trip: (trip.from_city_id, trip.to_city_id, trip.mode, trip.id))
    connection.executemany(tables.INSERT_TRIP, trips)
    connection.execute("COMMIT")
    connection.close()
    with path.open("r+b") as file:
        file.seek(_SQLITE_VERSION_OFFSET)
        file.write(bytes(4))
        os.fsync(file.fileno())


def write_archive(folder: Path, archive: Path) -> str:
    """Packs the folder's files as `.tar.gz`, the same bytes for the same files, and returns its SHA-256."""
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    try:
        with (
            unfinished.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in sorted(folder.iterdir()):
                data = path.read_bytes()
                member = tarfile.TarInfo(path.name)
                member.size, member.mode = len(data), 0o444
                tar.addfile(member, io.BytesIO(data))
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    return hash_file(archive)[1]


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m opd.agent.make_database",
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
        if arguments.force and (arguments.out / MANIFEST_FILE).is_file():
            shutil.rmtree(arguments.out)
        manifest = write_database(arguments.out, seed=arguments.seed, num_cities=arguments.num_cities)
    except (FileExistsError, ValueError) as error:
        parser.error(str(error))
    counts = ", ".join(f"{num} {table}" for table, num in manifest.num_rows.items())
    print(f"{arguments.out}: {counts}, each in {' and '.join(LANGUAGES)}")
    for name, record in manifest.files.items():
        print(f"  {name}: {record.num_bytes} bytes, sha256 {record.sha256}")
    if arguments.archive is not None:
        print(f"{arguments.archive}: sha256 {write_archive(arguments.out, arguments.archive)}")
