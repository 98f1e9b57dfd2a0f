"""A run's process: its full disk, origin and start times."""

import errno
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.minimal import MINIMAL

from opd.errors import DiskFull, Overtaken, RunError, Unforeseen
from opd.experiment import SpecError, parse_tree
from opd.runs.origin import _commit_of_checkout, add, file_key, origin
from opd.runs.result import INSTALL_VARIABLE, as_disk_full
from opd.runs.run import attempting, refuse
from opd.runs.run import open_run as open_spec
from opd.store.local import LocalStore


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (RuntimeError("boom"), None),
        (OSError(errno.EACCES, "no"), None),
        (FULL, "OSError"),
        (caused(RuntimeError("\x1b[36mray::Worker\x1b[39m\n  Traceback\nwriting failed\n"), FULL), "RuntimeError: writing failed."),
        (caused(Overtaken("by attempt 3"), FULL), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("folder", ["", "gone"])
def test_a_full_disk_is_named_by_any_cause_in_the_chain(
    tmp_path: Path, error: Exception, named: str | None, folder: str
) -> None:
    full = as_disk_full(error, tmp_path / folder)
    assert (full is None) == (named is None)
    assert named is None or named in str(full)


def test_a_run_that_ends_on_a_full_disk_says_so(open_run: Callable) -> None:
    def work() -> None:
        with open_run():
            raise FULL

    with pytest.raises(DiskFull, match=r"the disk of .* is full, .*It resumes from its last complete checkpoint"):
        work()


@pytest.mark.parametrize(("error", "ending"), [(RuntimeError("boom"), Unforeseen), (FULL, DiskFull)])
def test_an_attempt_prints_the_traceback_of_an_error_that_it_cannot_name(
    open_run: Callable, capsys: Any, error: Exception, ending: type[RunError]
) -> None:
    with pytest.raises(ending), attempting(open_run()):
        raise error
    assert ("Traceback" in capsys.readouterr().err) is (ending is Unforeseen)


def test_a_finished_run_needs_its_inputs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INSTALL_VARIABLE, raising=False)
    spec = parse_tree(MINIMAL["opd"] | {"name": "r", "output": {"root": str(tmp_path)}}).spec
    assert refuse(spec, SpecError(())) == SpecError.exit_code
    with open_spec(spec) as run:
        run.finish({})
    assert refuse(spec, SpecError(())) == 0


def test_a_disk_without_space_is_seen_without_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.statvfs", lambda folder: SimpleNamespace(f_bavail=255, f_frsize=4096))
    full = as_disk_full(RuntimeError("torch says nothing"), tmp_path)
    assert "is full, the run ended with RuntimeError: torch says nothing" in str(full)


def test_an_attempts_origin_is_stored_and_added_to(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    add(store, 3, **origin())
    add(store, 3, devices={"H200": 2}, trackers={"wandb": "https://w/1"})
    record = store.get_json("attempts/0003/origin.json")
    assert record is not None
    assert (record["version"], record["devices"]) == (origin()["version"], {"H200": 2})
    assert file_key(3) == "attempts/0003/origin.json"
    found = origin({"OPD_REVISION": "c0ffee", "OPD_IMAGE": "registry/opd@sha256:1"})
    assert (found["commit"], found["image"]) == ("c0ffee", "registry/opd@sha256:1")
    (tmp_path / "file").write_text("no folder")
    add(LocalStore(tmp_path / "file"), 1, image="")  # an unreachable store ends no run


def test_a_checkout_has_its_commit_and_a_mark_for_files_that_differ_from_it(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.com"]
    assert _commit_of_checkout(tmp_path) == ""
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert _commit_of_checkout(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert _commit_of_checkout(tmp_path) == f"{commit}-dirty"
