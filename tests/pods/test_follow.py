"""The log container of HTTPMode prints each byte of the drivers' logs once, whenever the files appear."""

import io
import signal
import subprocess
import sys

from opd.pods.follow import poll


def test_what_is_new_is_printed_once(tmp_path):
    out = io.BytesIO()
    logs, offsets = tmp_path / "logs", {}
    assert poll(logs, offsets, out) == 0  # Ray has not made its folder yet
    log = tmp_path / "logs/job-driver-abc.log"
    log.parent.mkdir()
    log.write_bytes(b"one\ntw")
    assert poll(logs, offsets, out) == 6
    assert poll(logs, offsets, out) == 0
    with log.open("ab") as file:
        file.write(b"o\n\xff\n")
    (tmp_path / "logs/raylet.out").write_text("noise")
    assert poll(logs, offsets, out) == 4
    assert out.getvalue() == b"one\ntwo\n\xff\n"


def test_a_new_session_s_log_is_followed_through_the_link_that_moves(tmp_path):
    out = io.BytesIO()
    link = tmp_path / "latest"
    for number in (1, 2):
        folder = tmp_path / f"session-{number}"
        folder.mkdir()
        (folder / "job-driver-x.log").write_text(f"session {number}\n")
    link.symlink_to("session-1")
    offsets = {}
    poll(link, offsets, out)
    link.unlink()
    link.symlink_to("session-2")
    poll(link, offsets, out)
    assert out.getvalue() == b"session 1\nsession 2\n"


def test_a_terminated_container_ends_at_once(tmp_path):
    (tmp_path / "job-driver-x.log").write_text("hello\n")
    command = [sys.executable, "-m", "opd.pods.follow", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "hello\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_a_log_that_goes_between_the_look_and_the_read_is_passed_over(tmp_path):
    out = io.BytesIO()
    (tmp_path / "job-driver-a.log").symlink_to("gone")
    (tmp_path / "job-driver-b.log").write_bytes(b"there\n")
    poll(tmp_path, {}, out)
    assert out.getvalue() == b"there\n"
