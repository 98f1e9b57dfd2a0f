"""The database: the same bytes for a seed, nothing can write it, and a damaged or foreign folder is refused by name."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys

import pytest
from tests.opd_envs.travel.worlds import NUM_CITIES, SEED

from opd.pods.stage import FetchError, fetch
from opd_envs.database_folder import MANIFEST_FILE, ManifestError, write_archive
from opd_envs.travel.database import (
    DATABASE_FILES,
    PRICE_RANGES,
    episode_price,
    open_database,
    read_manifest,
    verify_folder,
)
from opd_envs.travel.make_database import main


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_seed_gives_the_same_bytes_in_another_process(database_dir, tmp_path):
    command = [
        sys.executable,
        "-m",
        "opd_envs.travel.make_database",
        "--seed",
        str(SEED),
        "--num-cities",
        str(NUM_CITIES),
    ]
    subprocess.run([*command, "--out", str(tmp_path / "again")], check=True, capture_output=True)
    assert contents(tmp_path / "again") == contents(database_dir)


def test_both_languages_hold_the_same_entries_under_other_names(database):
    for english, chinese in zip(database.cities("en"), database.cities("zh"), strict=True):
        assert english.name.isascii()
        assert not any(char.isascii() for char in chinese.name)
        for kind in ("hotel", "restaurant", "attraction"):
            pairs = zip(database.places(english, kind), database.places(chinese, kind), strict=True)
            for one, other in pairs:
                texts = {"name": "", "category": "", "features": ()}
                assert one._replace(**texts) == other._replace(**texts)
                assert one.name != other.name
                assert len(one.features) == len(other.features)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO cities VALUES (9999, 'x', 0, 0)",
        "DELETE FROM cities",
        "UPDATE places SET price = 0",
        "DROP TABLE trips",
        "CREATE TABLE mine (x)",
        "CREATE TEMP TABLE mine (x)",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = WAL",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT load_extension('x')",
        "SELECT writefile('x', 'y')",
        "BEGIN",
    ],
)
def test_a_connection_refuses_everything_but_reading(database, statement, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    connection = database._connections["en"]
    with pytest.raises((sqlite3.DatabaseError, sqlite3.OperationalError)):
        connection.execute(statement).fetchall()
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_no_file_beside_the_database_even_in_a_folder_that_cannot_be_written(database_dir, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(database_dir, folder)
    before = contents(folder)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    reader = open_database(folder)
    assert len(reader.cities("zh")) == NUM_CITIES
    reader.close()
    folder.chmod(0o755)
    assert contents(folder) == before


def copy_of(database_dir, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(database_dir, folder)
    return folder


def test_a_folder_without_a_manifest_is_refused_with_the_way_to_make_one(tmp_path):
    with pytest.raises(ManifestError, match=r"holds no manifest.json; make a database with `python -m opd_envs.travel"):
        open_database(tmp_path)


def test_a_missing_file_a_wrong_size_and_a_wrong_hash_are_named(database_dir, tmp_path):
    folder = copy_of(database_dir, tmp_path)
    victim = folder / DATABASE_FILES["zh"]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    read_manifest(folder)
    with pytest.raises(ManifestError, match=r"travel_zh.sqlite: has SHA-256 [0-9a-f]{64}, its manifest says"):
        verify_folder(folder)
    victim.write_bytes(data[:-1])
    with pytest.raises(ManifestError, match=r"travel_zh.sqlite: has \d+ bytes, its manifest says \d+"):
        open_database(folder)
    victim.unlink()
    with pytest.raises(ManifestError, match=r"travel_zh.sqlite: is missing"):
        open_database(folder)


@pytest.mark.parametrize("name", ["../outside.sqlite", "/etc/passwd", ".hidden", "a/b"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(database_dir, tmp_path, name):
    folder = copy_of(database_dir, tmp_path)
    path = folder / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"sha256": "0" * 64, "num_bytes": 1}
    path.write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match="files"):
        read_manifest(folder)


def test_a_folder_that_holds_something_is_not_overwritten_without_force(database_dir, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    for options in ([], ["--force"]):  # --force replaces a database, nothing else
        with pytest.raises(SystemExit):
            main(["--out", str(tmp_path / "out"), "--num-cities", "3", *options])
        assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"
    main(["--out", str(tmp_path / "db"), "--num-cities", "3"])
    main(["--out", str(tmp_path / "db"), "--num-cities", "4", "--force"])
    assert read_manifest(tmp_path / "db").num_cities == 4
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "db"), "--num-cities", "1", "--force"])
    assert read_manifest(tmp_path / "db").num_cities == 4, "what cannot be made replaces nothing"


def test_the_archive_is_what_the_pods_init_container_verifies_and_unpacks(database_dir, tmp_path):
    archive = tmp_path / "travel.tar.gz"
    sha256 = write_archive(database_dir, archive)
    assert sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert write_archive(database_dir, tmp_path / "again.tar.gz") == sha256
    target = tmp_path / "pod"
    fetch(archive.as_uri(), sha256, target)
    assert contents(target) == contents(database_dir)
    assert verify_folder(target).seed == SEED
    with pytest.raises(FetchError, match="SHA-256"):
        fetch(archive.as_uri(), "0" * 64, tmp_path / "other")


def test_an_episodes_price_depends_on_entry_and_seed_alone_and_covers_the_whole_range():
    low, high = PRICE_RANGES["hotel"]
    prices = [episode_price(500, "hotel", 3, seed) for seed in range(20_000)]
    assert prices == [episode_price(low, "hotel", 3, seed) for seed in range(20_000)]
    assert set(prices) == set(range(low, high + 1))
    assert episode_price(500, "hotel", 3, None) == 500
    assert prices != [episode_price(500, "hotel", 4, seed) for seed in range(20_000)]


def test_an_episode_changes_prices_in_both_languages_alike_and_nothing_else(database):
    for city_id in range(5):
        english, chinese = database.city_in("en", city_id), database.city_in("zh", city_id)
        view = database.in_episode(11)
        stored, seen = database.places(english, "hotel"), view.places(english, "hotel")
        assert [p.price for p in seen] == [p.price for p in view.places(chinese, "hotel")]
        assert [p.price for p in seen] != [p.price for p in stored]
        assert [p._replace(price=0) for p in seen] == [p._replace(price=0) for p in stored]
