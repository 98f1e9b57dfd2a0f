"""Small programs of pods: a fetched tool database is whole and the expected one, logs are printed once, a claim is filled."""

import hashlib
import io
import tarfile

import pytest

from opd.pods.stage import FetchError, fetch, main


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def database(tmp_path):
    source = tmp_path / "db"
    (source / "cities").mkdir(parents=True)
    (source / "flights.sqlite").write_bytes(b"SQLite" * 1000)
    (source / "cities/list.txt").write_text("Rome\n")
    return source


def archive(path, source, mode="w:gz", name="."):
    with tarfile.open(path, mode) as tar:
        for item in source.iterdir() if name is None else [source]:
            tar.add(item, arcname=name or item.name)
    return path


@pytest.mark.parametrize(("mode", "name"), [("w:gz", None), ("w", ".")], ids=["of its entries", "of its folder"])
def test_an_archive_is_unpacked(tmp_path, database, mode, name):
    path, target = archive(tmp_path / "database.tar", database, mode, name), tmp_path / "out"
    assert fetch(f"file://{path}", sha256_of(path), target) == ["cities", "flights.sqlite"]
    assert (target / "cities/list.txt").read_text() == "Rome\n"
    assert {path.name for path in target.iterdir()} == {"cities", "flights.sqlite"}


def test_a_single_file_keeps_its_name(tmp_path, database):
    source = database / "flights.sqlite"
    fetch(f"file://{source}", sha256_of(source), tmp_path / "out")
    assert (tmp_path / "out/flights.sqlite").read_bytes() == source.read_bytes()


def test_a_file_with_another_hash_leaves_nothing(tmp_path, database):
    path = database / "flights.sqlite"
    with pytest.raises(FetchError, match=f"expected {'0' * 64}"):
        fetch(f"file://{path}", "0" * 64, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), *(("evil", kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE))],
)  # fmt: skip
def test_an_archive_with_links_devices_or_a_way_out_is_refused(tmp_path, name, kind):
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    with pytest.raises(FetchError, match="unsafe member"):
        fetch(f"file://{path}", sha256_of(path), tmp_path / "deep/out")
    assert not list(tmp_path.rglob("evil"))


def test_the_command_says_what_went_wrong_in_one_line(tmp_path, capsys):
    assert main([f"file://{tmp_path}/absent", "--sha256", "0" * 64, "--to", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_source_that_is_neither_url_nor_hub_id_is_refused(tmp_path, capsys):
    assert main(["/some/path/here", "--to", str(tmp_path)]) == 1
    assert "neither a store URL" in capsys.readouterr().err
