"""A full disk is called that, whatever the library that met it says."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from opd.errors import DiskFull, Overtaken
from opd.runs.disk import as_disk_full

# A tmpfs of one MiB, of a user's own mount namespace; the script's argument is the folder it lies on.
IN_A_SMALL_DISK = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                   'mount -t tmpfs -o size=4m opd "$0" && exec "$@"')  # fmt: skip


def test_an_error_of_a_disk_with_room_is_left_alone(tmp_path: Path) -> None:
    assert as_disk_full(RuntimeError("boom"), tmp_path) is None
    assert as_disk_full(OSError(errno.EACCES, "no"), tmp_path) is None


def test_a_folder_that_is_gone_is_no_full_disk_unless_the_error_says_so(tmp_path: Path) -> None:
    assert as_disk_full(RuntimeError("boom"), tmp_path / "gone") is None
    full = as_disk_full(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "gone")
    assert str(full).startswith(f"the disk of {tmp_path / 'gone'} is full, the run ended with OSError")


def test_a_number_anywhere_in_the_chain_of_causes_is_enough(tmp_path: Path) -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as cause:
            raise RuntimeError("\x1b[36mray::Worker\x1b[39m\n  Traceback\nwriting failed\n") from cause
    except RuntimeError as error:
        full = as_disk_full(error, tmp_path)
    assert full is not None
    assert str(tmp_path) in str(full)
    assert "RuntimeError: writing failed;" in str(full)


def test_a_run_that_ends_on_a_full_disk_says_so(open_run: Callable) -> None:
    def work() -> None:
        with open_run():
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFull, match=r"the disk of .* is full .*goes on from its last complete checkpoint"):
        work()


def test_an_attempt_that_was_overtaken_ended_by_that_although_the_disk_is_full(tmp_path: Path) -> None:
    error = Overtaken("attempt 2 was overtaken by attempt 3")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert as_disk_full(error, tmp_path) is None


def test_a_disk_that_is_really_full_is_seen_without_a_number(tmp_path: Path) -> None:
    script = """
    import pathlib, sys
    from opd.runs.disk import as_disk_full
    folder = pathlib.Path(sys.argv[1])
    assert as_disk_full(RuntimeError("torch says nothing"), folder) is None
    try:
        (folder / "file").write_bytes(bytes(5 * 2**20))
    except OSError:
        pass
    print(as_disk_full(RuntimeError("torch says nothing"), folder))
    """
    command = [*IN_A_SMALL_DISK, str(tmp_path), sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "of 4 MiB free), the run ended with RuntimeError: torch says nothing" in done.stdout
