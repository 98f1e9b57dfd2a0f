"""`opdctl report --live`: what it serves follows the run, to this machine alone, and Ctrl-C is its good end."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from opdctl.report import assets
from opdctl.report.live import HEADERS, LiveServer, Source, names

from .conftest import PYTHON_PATH, hear_ctrl_c


def ask(url: str, path: str = "/", **headers: str) -> tuple[HTTPResponse, str]:
    """One request to a server, and the whole answer."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def steps_of(page: str) -> list[int]:
    [packed] = re.findall(r'id="chart-data">([^<]*)<', page)
    [chart] = json.loads(zlib.decompress(base64.b64decode(packed)))["charts"]
    return chart["from"]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `opdctl ARGUMENTS`, which goes on by itself."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "opdctl.cli", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": PYTHON_PATH}, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_ctrl_c,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_live_report_follows_its_run_and_ends_well_on_ctrl_c(command: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    make_run("r", attempts=[{1: {"opd/loss": 1.0}}])
    process = command("report", "--store", store, "--live")
    assert process.stdout is not None
    [url] = re.findall(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    first, page = ask(url)
    assert first.status == 200
    assert steps_of(page) == [1]
    assert re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[-1] == assets.read(assets.LIVE_SCRIPT)
    assert "connect-src &#39;self&#39;" in page

    assert ask(url, If_None_Match=first.headers["ETag"])[0].status == 304, "nothing has happened to the run"
    with open(store / "r" / "attempts" / "0001" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 2, "opd/loss": 0.5}) + "\n")
    second, page = ask(url, If_None_Match=first.headers["ETag"])
    assert second.status == 200
    assert steps_of(page) == [1, 2]

    shutil.rmtree(store / "r")
    gone, text = ask(url)
    assert gone.status == 503
    assert "no runs in this store" in text

    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.communicate()[1] == f"warning: {text}closed\n"
    assert list(tmp_path.glob("*.html")) == []


@pytest.fixture
def served() -> Iterator[tuple[LiveServer, list[Exception]]]:
    """A server of one small page, and the errors that its looks raise: one each, the last first."""
    errors: list[Exception] = []

    def look() -> list:
        if errors:
            raise errors.pop()
        return []

    source = Source(look, lambda _, write: write("report.html", "<p>page</p>"))
    with LiveServer(source, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server, errors
        server.shutdown()
        thread.join()


def test_only_who_names_this_machine_is_answered(served: tuple[LiveServer, list[Exception]]) -> None:
    server, _ = served
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server.url)[1] == "<p>page</p>"
    assert ask(server.url, Host=f"LocalHost:{server.server_port}")[0].status == 200
    rebound, text = ask(server.url, Host="attacker.example")
    assert rebound.status == 421
    assert "page" not in text


def test_browsers_leave_the_port_80_out() -> None:
    assert names(80) == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}
    assert names(8080) == {"127.0.0.1:8080", "localhost:8080"}


def test_a_browser_that_goes_away_within_a_page_is_not_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    is_gone = threading.Event()
    source = Source(lambda: [], lambda _, write: is_gone.wait(60) and write("report.html", "x" * 2**24))
    with LiveServer(source, port=0) as server:
        server.daemon_threads = False  # so that closing the server waits for the answer's end
        browser = socket.create_connection(server.server_address)
        browser.sendall(f"GET / HTTP/1.1\r\nHost: {server.server_address[0]}:{server.server_port}\r\n\r\n".encode())
        server.handle_request()
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
        browser.close()
        is_gone.set()
    assert capfd.readouterr().err == ""


def test_who_has_waited_for_a_store_that_is_away_does_not_wait_for_it_again() -> None:
    begun, came, is_over, looks = threading.Event(), threading.Semaphore(0), threading.Event(), []

    def look() -> list:
        looks.append("away")
        begun.set()
        is_over.wait(60)
        raise OSError("store away")

    class Door:
        """The source's lock, which tells who has come to it."""

        lock = threading.Lock()

        def __enter__(self) -> None:
            came.release()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    source = Source(look, lambda *_: None)
    source._lock = Door()  # type: ignore[assignment]
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(source.pages)]
        assert begun.wait(60)
        asked += [pool.submit(source.pages) for _ in range(4)]
        assert all(came.acquire(timeout=60) for _ in range(5))
        is_over.set()
    assert [str(one.exception()) for one in asked] == ["store away"] * 5
    assert len(looks) == 2, "one that had begun before the others came, and one for all of them"


def test_what_is_no_page_is_not_served_and_every_answer_keeps_other_sites_out(served: tuple[LiveServer, list[Exception]]) -> None:  # fmt: skip
    server, _ = served
    for path, status in (
        ("/report.html", 200),
        ("/../../etc/passwd", 404),
        ("/%2e%2e/etc/passwd", 404),
        ("/?a=1", 200),
    ):
        answer, _ = ask(server.url, path)
        assert answer.status == status, path
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_a_store_that_is_away_is_said_and_the_next_question_may_find_it_back(served: tuple[LiveServer, list[Exception]], capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    server, errors = served
    errors.append(OSError("store away"))
    answer, text = ask(server.url)
    assert (answer.status, text) == (503, "the runs could not be read: store away\n")
    assert capsys.readouterr().err == "warning: the runs could not be read: store away\n"
    assert ask(server.url)[0].status == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--live", "-o", "x.html"), "--live writes no file"), (("--port", "80"), "--port is the port of --live")],
)
def test_options_that_contradict_each_other_are_wrong_usage(inside: Callable, arguments: tuple[str, ...], said: str) -> None:  # fmt: skip
    done = inside("report", "r", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
