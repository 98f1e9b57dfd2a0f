"""What an attempt ran: told by the image and the chart, else by the checkout that the package lies in."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from opd.errors import StoreUnavailable
from opd.runs.origin import _commit_of_checkout, add, file_key, origin, tell
from opd.store.local import LocalStore


def test_image_and_commit_are_what_image_and_chart_say():
    found = origin({"OPD_REVISION": "c0ffee", "OPD_IMAGE": "registry/opd@sha256:1"})
    assert (found["version"], found["commit"], found["image"]) == (version("opd"), "c0ffee", "registry/opd@sha256:1")
    assert file_key(3) == "attempts/0003/origin.json"


def test_sources_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.path", [])  # where the metadata of installed packages are looked for
    assert origin({"OPD_REVISION": "c0ffee"})["version"] == ""


def test_it_lies_with_the_attempt_and_a_store_that_is_away_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = LocalStore(tmp_path / "run")
    tell(store, 1)
    assert store.get_json(file_key(1)) == origin()

    class Away(LocalStore):
        def put_json(self, *_: object) -> None:
            raise StoreUnavailable("no route to host")

    tell(Away(tmp_path / "away"), 2)
    assert "of attempt 2 are not stored: no route to host" in caplog.text


def test_devices_and_trackers_are_added_to_what_was_told(tmp_path: Path):
    store = LocalStore(tmp_path / "run")
    tell(store, 1)
    add(store, 1, devices=["NVIDIA H200"] * 8, trackers={"wandb": "https://wandb.example/r"})
    assert store.get_json(file_key(1)) == {
        **origin(), "devices": {"NVIDIA H200": 8}, "trackers": {"wandb": "https://wandb.example/r"}
    }  # fmt: skip


def test_a_checkout_tells_its_commit_and_whether_files_differ_from_it(tmp_path: Path):
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", "-C", str(tmp_path), *identity, *words], capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip

    assert _commit_of_checkout(tmp_path) == "", "an installed package lies in no checkout"
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v1.0.0")
    commit = git("rev-parse", "HEAD")
    assert _commit_of_checkout(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert _commit_of_checkout(tmp_path) == f"{commit}-dirty"
