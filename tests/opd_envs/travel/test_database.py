"""The database: the same bytes for a seed, nothing can write it, and a damaged or foreign folder is rejected by name."""

import json
import shutil
import sqlite3
import subprocess
import sys

import pytest
from tests.opd_envs.travel.conftest import NUM_CITIES, SEED

from opd_envs.database_folder import MANIFEST_FILE, ManifestError, read_manifest
from opd_envs.travel.database import DATABASE_FILES, PRICE_RANGES, Database, Manifest, episode_price
from opd_envs.travel.make_database import main


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_seed_gives_the_same_bytes_in_another_process(database_dir, tmp_path):
    command = [sys.executable, "-m", "opd_envs.travel.make_database", "--out", tmp_path / "again"]
    subprocess.run([*command, f"--seed={SEED}", f"--num-cities={NUM_CITIES}"], check=True, capture_output=True)
    assert contents(tmp_path / "again") == contents(database_dir)
    assert read_manifest(database_dir, Manifest, compare_hashes=True).seed == SEED


def test_both_languages_hold_the_same_entries_under_other_names(database):
    texts = {"name": "", "category": "", "features": ()}
    for english, chinese in zip(database.cities("en"), database.cities("zh"), strict=True):
        assert english.name.isascii()
        assert not any(char.isascii() for char in chinese.name)
        for kind in ("hotel", "restaurant", "attraction"):
            pairs = zip(database.places(english, kind), database.places(chinese, kind), strict=True)
            assert all(one._replace(**texts) == other._replace(**texts) for one, other in pairs)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO cities VALUES (9999, 'x', 0, 0)",
        "DELETE FROM cities",
        "DROP TABLE trips",
        "CREATE TEMP TABLE mine (x)",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "PRAGMA query_only = OFF",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT load_extension('x')",
        "BEGIN",
    ],
)
def test_a_connection_refuses_everything_but_reading(database, statement, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((sqlite3.DatabaseError, sqlite3.OperationalError)):
        database._connections["en"].execute(statement).fetchall()
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_no_file_next_to_the_database_even_in_a_read_only_folder(database_dir, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(database_dir, folder)
    folder.chmod(0o555)
    reader = Database(folder)
    assert len(reader.cities("zh")) == NUM_CITIES
    reader.close()
    folder.chmod(0o755)
    assert contents(folder) == contents(database_dir)


def test_a_missing_manifest_or_file_a_wrong_size_or_hash_and_another_format_are_named(database_dir, tmp_path):
    with pytest.raises(ManifestError, match=r"has no manifest.json; make a database with `python -m opd_envs.travel"):
        Database(tmp_path)
    folder = tmp_path / "damaged"
    shutil.copytree(database_dir, folder)
    victim = folder / DATABASE_FILES["zh"]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    Database(folder).close()
    with pytest.raises(ManifestError, match=r"travel_zh.sqlite: has SHA-256 [0-9a-f]{64}, its manifest says"):
        read_manifest(folder, Manifest, compare_hashes=True)
    victim.write_bytes(data[:-1])
    with pytest.raises(ManifestError, match=r"travel_zh.sqlite: has \d+ bytes, its manifest says \d+"):
        Database(folder)
    victim.unlink()
    with pytest.raises(ManifestError, match=r"travel_zh.sqlite: is missing"):
        Database(folder)
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    outside = {"files": {"../outside.sqlite": {"sha256": "0" * 64, "num_bytes": 1}}}
    for change, field in ((outside, "files"), ({"format_version": 2}, "format_version"), ({"kind": "x"}, "kind")):
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest | change))
        with pytest.raises(ManifestError, match=rf"manifest.json: {field}.*; give a folder that"):
            Database(folder)


def test_a_folder_with_content_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("kept")
    for options, message in ((["--num-cities", "3"], "is not empty"), (["--num-cities", "1"], "")):
        with pytest.raises(SystemExit):
            main(["--out", str(tmp_path), *options])
        assert message in capsys.readouterr().err
    assert contents(tmp_path) == {"mine.txt": b"kept"}


def test_an_episodes_price_depends_on_entry_and_seed_alone_and_covers_the_whole_range():
    low, high = PRICE_RANGES["hotel"]
    prices = [episode_price(500, "hotel", 3, seed) for seed in range(20_000)]
    assert prices == [episode_price(low, "hotel", 3, seed) for seed in range(20_000)]
    assert set(prices) == set(range(low, high + 1))
    assert episode_price(500, "hotel", 3, None) == 500
    assert prices != [episode_price(500, "hotel", 4, seed) for seed in range(20_000)]


def test_an_episode_changes_prices_in_both_languages_alike_and_nothing_else(database):
    english, chinese, view = database.city_in("en", 1), database.city_in("zh", 1), database.in_episode(11)
    stored, seen = database.places(english, "hotel"), view.places(english, "hotel")
    assert [p.price for p in seen] == [p.price for p in view.places(chinese, "hotel")] != [p.price for p in stored]
    assert [p._replace(price=0) for p in seen] == [p._replace(price=0) for p in stored]
