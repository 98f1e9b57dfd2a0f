"""Import of the published archives: every value as it is, the same bytes each time, a fault with its place."""

import pytest
from tests.opd_envs.deepplanning.published import files, write_data, write_zip

from opd_envs.database_folder import ManifestError, read_manifest
from opd_envs.deepplanning.database import Database, Manifest
from opd_envs.deepplanning.layout import ARCHIVES, TABLES
from opd_envs.deepplanning.make_database import main
from opd_envs.travel import database as travel

TRAINS, HOTELS = "trains/trains.csv", "hotels/hotels.csv"
PLACE = f"database_en.zip: id_0/{TRAINS}"


def test_every_value_is_stored_as_it_is_under_its_case(imported):
    database = Database(imported)
    for language, number in (("en", "0"), ("en", "1"), ("zh", "0"), ("zh", "1")):
        case, published = database.in_case(f"{language}/{number}"), files(language, number)
        for table in TABLES:
            assert case.rows(table) == [
                {name: row.get(name, "") for name in table.columns} for row in published[table.file]
            ]
    for name in ("en/99", "zh/en/0", "0"):
        with pytest.raises(KeyError, match="has no such case"):
            database.in_case(name)
    database.close()


def test_the_manifest_names_what_was_imported_and_the_same_archives_give_the_same_bytes(
    published_data, imported, tmp_path
):
    manifest = read_manifest(imported, Manifest, compare_hashes=True)
    assert manifest.case_names == {"en/0", "en/1", "zh/0", "zh/1"}
    assert (manifest.num_rows["en.trains"], manifest.num_rows["zh.distances"]) == (8, 2 * 7 * 6)
    main(["--data-dir", str(published_data), "--out", str(tmp_path / "again")])
    for path in imported.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(ManifestError, match=r"kind: Input should be 'travel'"):
        travel.Database(imported)


def edited(old, new: bytes):
    """Change the text of the trains of case 0."""

    def change(members):
        name = f"database_en/id_0/{TRAINS}"
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(b"train_no", b"no"), f"{PLACE}: has no column train_no; its columns are origin_city, "),
        (lambda members: members.update({f"database_en/id_0/{TRAINS}": b""}), f"{PLACE}: has no column arr_datetime"),
        (edited(b"train_no", b"train_no,price"), f"{PLACE}: has column price twice"),
        (edited(b"G11\n", b"G11,x\n"), f"{PLACE} line 2: has 18 fields, the header 17"),
        (edited(b"G11", b"\xff\xfe"), f"{PLACE}: cannot be unpacked and read as UTF-8 CSV ('utf-8' codec can't decode"),
        (edited(b"G11", b"x" * 200_000), f"{PLACE}: cannot be unpacked and read as UTF-8 CSV (field larger than"),
        (lambda members: members.update({f"id_0/{TRAINS}": b""}), f"{PLACE}: is in the archive twice"),
        (lambda members: members.clear(), f"has no file of the form id_N/{TRAINS}"),
    ],
)
def test_a_fault_is_named_with_its_place_and_nothing_is_written(tmp_path, capsys, change, message):
    write_zip(tmp_path / "data" / ARCHIVES["en"], "en", change=change)
    with pytest.raises(SystemExit) as caught:
        main(["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert [item.name for item in tmp_path.iterdir()] == ["data"]


def test_a_file_an_optional_column_or_a_language_may_be_missing_and_is_named(tmp_path, capsys):
    def change(members):
        del members[f"database_en/id_0/{TRAINS}"]
        hotels = members[f"database_en/id_1/{HOTELS}"]
        members[f"database_en/id_1/{HOTELS}"] = hotels.replace(b"services", b"other")

    write_zip(tmp_path / "data" / ARCHIVES["en"], "en", change=change)
    main(["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert f"note: database_en.zip: {HOTELS}: column services: missing in 1 cases" in printed
    assert f"note: database_en.zip: {TRAINS}: missing in 1 cases" in printed
    assert "database_zh.zip: no such file" in printed
    assert read_manifest(tmp_path / "out", Manifest).num_rows["en.trains"] == 4


def test_a_damaged_or_encrypted_member_no_archive_and_a_missing_archive_are_named(tmp_path, capsys):
    data = write_data(tmp_path / "data", languages=["en"])
    path = data / ARCHIVES["en"]
    whole = path.read_bytes()
    at = whole.index(b"hotels.csv") + 60
    encrypted = bytearray(whole)
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    encrypted[6] |= 1
    for content, message in (
        (whole[:at] + bytes(20) + whole[at + 20 :], f"id_0/{HOTELS}: cannot be unpacked and"),
        (bytes(encrypted), "is encrypted"),
        (b"version https://git-lfs", "database_en.zip: no readable zip archive"),
        (None, "database_zh.zip: no such file. Get them from https://"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(SystemExit):
            main(["--data-dir", str(data), "--out", str(tmp_path / "out")])
        assert message in capsys.readouterr().err
