"""The published archives: imported as they stand, to the same bytes each time, and everything that differs is named."""

import stat
import zipfile

import pytest
from tests.opd_envs.deepplanning.published import csv_text, files, write_data, write_zip

from opd_envs.database_folder import ManifestError
from opd_envs.deepplanning.__main__ import main
from opd_envs.deepplanning.archive import TRAVEL, Archive
from opd_envs.deepplanning.database import open_database, verify_database
from opd_envs.deepplanning.importer import checked_cases
from opd_envs.deepplanning.layout import TABLES, Surprises
from opd_envs.deepplanning.parts import PARTS
from opd_envs.travel import database as travel
from opd_envs.travel.make_database import write_database


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_value_is_stored_as_it_stands_under_its_case(imported):
    database = open_database(imported)
    for language in ("en", "zh"):
        for number in ("0", "1"):
            case = database.in_case(f"{language}/{number}")
            for table in TABLES:
                published = [
                    {name: row.get(name, "") for name in table.column_names}
                    for row in files(language, number)[table.file]
                ]
                assert case.rows(table) == published
    database.close()


def test_the_manifest_says_what_was_imported(imported):
    manifest = verify_database(imported)
    assert manifest.case_names == {f"{part}/{case}" for part in PARTS for case in "01"}
    assert manifest.num_rows["en.trains"] == 8
    assert manifest.num_rows["zh.distances"] == 2 * 7 * 6
    assert open_database(imported).manifest == manifest


def test_the_same_archives_give_the_same_bytes(published_data, imported, tmp_path):
    main(["import", "--data-dir", str(published_data), "--out", str(tmp_path / "again")])
    assert contents(tmp_path / "again") == contents(imported)


def surprises_of(tmp_path, change, queries=None):
    found = Surprises()
    with Archive(write_zip(tmp_path / "database_en.zip", "en", cases=["0"], change=change), TRAVEL, found) as archive:
        for _ in checked_cases(archive, queries, found):
            pass
    return list(found.lines())


def edited(file, old, new):
    """Changes the text of one file of case 0."""

    def change(members):
        name = f"database_en/id_0/{file}"
        assert old.encode() in members[name]
        members[name] = members[name].replace(old.encode(), new if isinstance(new, bytes) else new.encode())

    return change


def rows_with(file, **values):
    """Sets columns of the first row of one file of case 0."""

    def change(members):
        rows = files("en", "0")[file]
        rows[0] |= values
        members[f"database_en/id_0/{file}"] = csv_text(rows).encode()

    return change


TRAINS, HOTELS, PLACES = "trains/trains.csv", "hotels/hotels.csv", "locations/locations_coords.csv"
MATRIX, FOOD = "transportation/distance_matrix.csv", "restaurants/restaurants.csv"
CHANGES = [
    (lambda m: m.pop(f"database_en/id_0/{TRAINS}"), f"note: {TRAINS}: no such file; the case has no trains (id_0)"),
    (lambda m: m.update({f"database_en/id_0/{TRAINS}": b""}), f"fault: {TRAINS}: column 'price' is missing (id_0 has"),
    (edited(TRAINS, "train_no", "no"), f"fault: {TRAINS}: column 'train_no' is missing (id_0 has origin_city, dest"),
    (edited(TRAINS, "train_no", "no"), f"note: {TRAINS}: column 'no' is not read; left out (id_0)"),
    (edited(TRAINS, "seat_status", "price"), f"fault: {TRAINS}: column 'price' is there twice (id_0)"),
    (edited(TRAINS, "G11\n", "G11,x\n"), f"fault: {TRAINS}: a row has more fields than the header (id_0 line 2)"),
    (edited(TRAINS, ",High Speed,G11\n", "\n"), f"note: {TRAINS}: a row has fewer fields than the header; the rest"),
    (edited(TRAINS, "G11", b"\xff\xfe"), f"fault: {TRAINS}: not UTF-8 (id_0: invalid start byte at byte"),
    (edited(TRAINS, "G11", "甲".encode("gb18030")), f"fault: {TRAINS}: not UTF-8"),
    (edited(TRAINS, "G11", "x" * 200_000), f"fault: {TRAINS}: not CSV (id_0: field larger than field limit"),
    (rows_with(TRAINS, dep_date="2025/11/12"), "column 'dep_date' must be a date as YYYY-MM-DD (id_0 line 2: '2025/"),
    (rows_with(TRAINS, price="cheap"), "note: trains/trains.csv: column 'price' must be a number (id_0 line 2: 'cheap'"),
    (rows_with(TRAINS, duration="1h"), "column 'duration' must be a whole number (id_0 line 2: '1h')"),
    (rows_with(TRAINS, dep_datetime="08:00"), "column 'dep_datetime' must be a time as YYYY-MM-DD HH:MM (id_0 line 2"),
    (rows_with(TRAINS, train_no=" "), "column 'train_no' must not be empty (id_0 line 2: ' ')"),
    (rows_with(HOTELS, name="Heron Palace"), f"note: {HOTELS}: name twice in one case (id_0 line 3: 'Heron Palace')"),
    (rows_with(HOTELS, latitude="31.21"), f"note: {HOTELS}: column 'latitude' must have six decimals (id_0 line 2"),
    (rows_with(MATRIX, origin="1, 2"), "column 'origin' must be LATITUDE,LONGITUDE of six decimals each (id_0 line 2"),
    (rows_with(PLACES, latitude="31.999999"), f"note: {PLACES}: a place is not in {MATRIX} (id_0 line 2: 'Asterby"[:60]),
    (rows_with(FOOD, query_latitude="31.999999"), f"note: {FOOD}: query coordinates of no place (id_0 line 2: '31.9"),
    (lambda m: m.update({"database_en/readme.txt": b""}), "note: archive: a member that no tool reads; left out ('data"),
    (lambda m: m.update({"../id_0/evil.csv": b""}), "fault: archive: a member's name leads out of it ('../id_0/evil"),
    (lambda m: m.update({"/etc/passwd": b""}), "fault: archive: a member's name leads out of it ('/etc/passwd')"),
    (lambda m: m.update({f"id_0/{TRAINS}": b""}), f"fault: {TRAINS}: is there twice (id_0: 'id_0/trains/trains.csv')"),
    (lambda m: m.clear(), "fault: archive: no file of the form id_N/trains/trains.csv is in it (database_en.zip)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), CHANGES, ids=range(len(CHANGES)))
def test_a_difference_from_the_layout_is_named_with_its_place(tmp_path, change, line):
    assert any(line in found for found in surprises_of(tmp_path, change))


def test_links_and_encrypted_members_are_faults(tmp_path):
    path = tmp_path / "database_en.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo(f"id_0/{TRAINS}")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("id_0/hotels/hotels.csv", "x")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1  # the encryption flag of the last member
    path.write_bytes(data)
    found = Surprises()
    Archive(path, TRAVEL, found).__exit__(None, None, None)
    assert [line.split(" (")[0] for line in found.lines()] == [
        "fault: archive: a member is a link",
        "fault: archive: a member is encrypted",
    ]


def test_a_damaged_archive_is_a_fault_and_what_is_no_archive_an_error(tmp_path, capsys):
    data = write_data(tmp_path, languages=["en"])
    path = next(data.rglob("*.zip"))
    whole = path.read_bytes()
    at = whole.index(b"hotels.csv") + 60
    path.write_bytes(whole[:at] + bytes(20) + whole[at + 20 :])
    assert main(["check", "--data-dir", str(data)]) == 1
    assert "fault: hotels/hotels.csv: cannot be unpacked (id_0:" in capsys.readouterr().out
    path.write_bytes(b"version https://git-lfs")
    assert main(["check", "--data-dir", str(data)]) == 2
    assert "database_en.zip: no readable zip archive" in capsys.readouterr().err


def test_faults_write_nothing_and_notes_are_imported_and_counted(tmp_path, capsys):
    data = write_data(tmp_path / "data", languages=["en"])
    path = next(data.rglob("*.zip"))
    write_zip(path, "en", change=edited(TRAINS, "train_no", "no"))
    assert main(["import", "--data-dir", str(data), "--out", str(tmp_path / "out")]) == 1
    assert "nothing was written; `check --all` lists every one" in capsys.readouterr().err
    assert [item.name for item in tmp_path.iterdir()] == ["data"]
    write_zip(path, "en", change=rows_with(TRAINS, price=""))
    assert main(["import", "--data-dir", str(data), "--out", str(tmp_path / "out")]) == 0
    assert verify_database(tmp_path / "out").num_notes == {"en": 1}


def test_a_folder_of_the_other_environment_is_refused_by_its_kind(imported, tmp_path):
    write_database(tmp_path / "travel", seed=1, num_cities=2)
    with pytest.raises(ManifestError, match=r"kind = \(none\): these tools read deepplanning"):
        open_database(tmp_path / "travel")
    with pytest.raises(ManifestError, match=r"kind = deepplanning: these tools read \(none\)"):
        travel.open_database(imported)


def test_a_case_that_is_not_there_is_an_error(imported):
    with pytest.raises(KeyError, match="has no such case"):
        open_database(imported).in_case("en/99")
