"""Import of the published archives: every value as it is, the same bytes each time, each fault with its place."""

import zipfile

import pytest
from tests.opd_envs.deepplanning.published import files, write_data, write_zip

from opd_envs.database_folder import ManifestError
from opd_envs.deepplanning.database import open_database, verify_database
from opd_envs.deepplanning.layout import ARCHIVES, TABLES
from opd_envs.deepplanning.make_database import Archive, ImportRefused, main
from opd_envs.travel import database as travel
from opd_envs.travel.make_database import write_database

TRAINS, HOTELS = "trains/trains.csv", "hotels/hotels.csv"


def test_every_value_is_stored_as_it_is_under_its_case(imported):
    database = open_database(imported)
    for language in ("en", "zh"):
        for number in ("0", "1"):
            case = database.in_case(f"{language}/{number}")
            for table in TABLES:
                published = [
                    {name: row.get(name, "") for name in table.columns} for row in files(language, number)[table.file]
                ]
                assert case.rows(table) == published
    for name in ("en/99", "zh/en/0", "0"):
        with pytest.raises(KeyError, match="has no such case"):
            database.in_case(name)
    database.close()


def test_the_manifest_names_what_was_imported_and_the_same_archives_give_the_same_bytes(
    published_data, imported, tmp_path
):
    manifest = verify_database(imported)
    assert manifest.case_names == {f"{language}/{case}" for language in ("en", "zh") for case in "01"}
    assert (manifest.num_rows["en.trains"], manifest.num_rows["zh.distances"]) == (8, 2 * 7 * 6)
    main(["--data-dir", str(published_data), "--out", str(tmp_path / "again")])
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
        path.name: path.read_bytes() for path in imported.iterdir()
    }


def edited(old, new):
    """Change the text of the trains of case 0."""

    def change(members):
        name = f"database_en/id_0/{TRAINS}"
        assert old.encode() in members[name]
        members[name] = members[name].replace(old.encode(), new if isinstance(new, bytes) else new.encode())

    return change


PLACE = f"database_en.zip: id_0/{TRAINS}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited("train_no", "no"), f"{PLACE}: has no column train_no; its columns are origin_city, "),
        (lambda members: members.update({f"database_en/id_0/{TRAINS}": b""}), f"{PLACE}: has no column arr_datetime"),
        (edited("train_no", "train_no,price"), f"{PLACE}: has column price twice"),
        (edited("G11\n", "G11,x\n"), f"{PLACE} line 2: has 18 fields, the header 17"),
        (edited(",High Speed,G11\n", "\n"), f"{PLACE} line 2: has 15 fields, the header 17"),
        (edited("G11", b"\xff\xfe"), f"{PLACE}: not UTF-8 (invalid start byte at byte"),
        (edited("G11", "x" * 200_000), f"{PLACE}: not CSV (field larger than field limit"),
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


def test_a_file_or_an_optional_column_may_be_missing(tmp_path, capsys):
    def change(members):
        del members[f"database_en/id_0/{TRAINS}"]
        hotels = members[f"database_en/id_1/{HOTELS}"]
        members[f"database_en/id_1/{HOTELS}"] = hotels.replace(b"services", b"other")

    write_zip(tmp_path / "data" / ARCHIVES["en"], "en", change=change)
    main(["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        f"note: database_en.zip: {HOTELS}: column services: missing in 1 cases",
        f"note: database_en.zip: {TRAINS}: missing in 1 cases",
    ]
    assert verify_database(tmp_path / "out").num_rows["en.trains"] == 4


def test_an_encrypted_or_damaged_member_is_a_fault_and_another_file_no_archive(tmp_path, capsys):
    data = write_data(tmp_path / "data", languages=["en"])
    path = data / ARCHIVES["en"]
    whole = path.read_bytes()
    at = whole.index(b"hotels.csv") + 60
    encrypted = bytearray(whole)
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    encrypted[6] |= 1
    for content, message in (
        (whole[:at] + bytes(20) + whole[at + 20 :], f"id_0/{HOTELS}: cannot be unpacked ("),
        (bytes(encrypted), "is encrypted"),
        (b"version https://git-lfs", "database_en.zip: no readable zip archive"),
    ):
        path.write_bytes(content)
        with pytest.raises(SystemExit):
            main(["--data-dir", str(data), "--out", str(tmp_path / "out")])
        assert message in capsys.readouterr().err


def test_an_archive_that_unpacks_to_too_much_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("opd_envs.deepplanning.make_database.MAX_BYTES", 1000)
    path = tmp_path / "database_en.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"id_0/{TRAINS}", bytes(1001))
    with pytest.raises(ImportRefused, match="has 1001 bytes unpacked, at most 1000 are read"):
        Archive(path)


def test_a_named_archive_must_be_there_and_another_may_be_missing(tmp_path, capsys):
    data = write_data(tmp_path / "data", languages=["en"])
    with pytest.raises(SystemExit):
        main(["--data-dir", str(data), "--out", str(tmp_path / "out"), "--languages", "zh"])
    assert "database_zh.zip: no such file. Get it from https://" in capsys.readouterr().err
    main(["--data-dir", str(data), "--out", str(tmp_path / "out"), "--archive", str(tmp_path / "packed.tar.gz")])
    printed = capsys.readouterr().out
    assert "database_zh.zip: no such file; left out" in printed
    assert f"{tmp_path / 'packed.tar.gz'}: sha256 " in printed


def test_a_folder_of_the_other_environment_is_refused_by_its_kind(imported, tmp_path):
    write_database(tmp_path / "travel", seed=1, num_cities=2)
    with pytest.raises(ManifestError, match=r"kind = \(none\): these tools read deepplanning"):
        open_database(tmp_path / "travel")
    with pytest.raises(ManifestError, match=r"kind = deepplanning: these tools read \(none\)"):
        travel.open_database(imported)
