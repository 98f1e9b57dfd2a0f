"""A fetched tool database is whole, the expected one, and stays where it belongs."""

import hashlib
import io
import tarfile

import pytest

from opd.pods.fetch import FetchError, fetch, main


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def archive(tmp_path):
    source = tmp_path / "db"
    (source / "cities").mkdir(parents=True)
    (source / "flights.sqlite").write_bytes(b"SQLite" * 1000)
    (source / "cities/list.txt").write_text("Rome\n")
    path = tmp_path / "database.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for item in source.iterdir():
            tar.add(item, arcname=item.name)
    return path


def test_an_archive_is_unpacked(tmp_path, archive):
    target = tmp_path / "out"
    assert fetch(f"file://{archive}", sha256_of(archive), target) == ["cities", "flights.sqlite"]
    assert (target / "cities/list.txt").read_text() == "Rome\n"
    assert {path.name for path in target.iterdir()} == {"cities", "flights.sqlite"}


def test_a_single_file_keeps_its_name(tmp_path):
    source = tmp_path / "x.sqlite"
    source.write_bytes(b"abc")
    fetch(f"file://{source}", sha256_of(source), tmp_path / "out")
    assert (tmp_path / "out/x.sqlite").read_bytes() == b"abc"


def test_a_file_with_another_hash_leaves_nothing_behind(tmp_path, archive):
    expected = sha256_of(archive)
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    with pytest.raises(FetchError, match=f"expected {expected}"):
        fetch(f"file://{archive}", expected, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def evil_archive(tmp_path, name):
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    return path


def test_an_archive_that_climbs_out_of_its_folder_is_refused(tmp_path):
    path = evil_archive(tmp_path, "../evil")
    with pytest.raises(FetchError, match="unsafe member"):
        fetch(f"file://{path}", sha256_of(path), tmp_path / "deep/out")
    assert not list(tmp_path.rglob("evil"))


def test_an_absolute_name_in_an_archive_stays_below_the_folder(tmp_path):
    path = evil_archive(tmp_path, "/evil")
    assert fetch(f"file://{path}", sha256_of(path), tmp_path / "out") == ["evil"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_links_or_devices_is_refused(tmp_path, kind):
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("flights.sqlite")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(FetchError, match=r"unsafe member: 'flights\.sqlite'"):
        fetch(f"file://{path}", sha256_of(path), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_archive_of_a_folder_by_its_dot_is_unpacked(tmp_path, archive):
    path = tmp_path / "dotted.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tmp_path / "db", arcname=".")
    assert fetch(f"file://{path}", sha256_of(path), tmp_path / "out") == ["cities", "flights.sqlite"]


def test_pythons_before_3_11_4_unpack_too(tmp_path, archive, monkeypatch):
    for name in ("data_filter", "FilterError"):
        monkeypatch.delattr(tarfile, name, raising=False)
    assert fetch(f"file://{archive}", sha256_of(archive), tmp_path / "out") == ["cities", "flights.sqlite"]


def test_the_command_says_what_went_wrong_in_one_line(tmp_path, capsys):
    assert main([f"file://{tmp_path}/absent", "--sha256", "0" * 64, "--to", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
