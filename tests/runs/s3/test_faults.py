"""Every way in which an S3 service or the way to it has failed: recovered from, or ended in one line within its time."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.runs.conftest import wait_until
from tests.runs.s3.server import FailingProxy

from opd.errors import StoreError
from opd.runs.stream import Streamer
from opd.store import remote as store_fsspec
from opd.store.base import NO_RETRY, RetryPolicy, Store
from opd.store.remote import open_store

# The first test may have to build the server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
QUICK = RetryPolicy(max_elapsed_s=20, first_wait_s=0.01, max_wait_s=0.05)

Headers = dict[str, str]
Fault = Callable[[BaseHTTPRequestHandler, int, Headers, bytes], bool]


def answer(request: BaseHTTPRequestHandler, status: int, headers: Headers, body: bytes) -> bool:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
    return True


def status(code: int) -> Fault:
    body = f"<Error><Code>Odd</Code><Message>{code}</Message></Error>".encode()
    return lambda request, _, headers, data: answer(request, code, {"Content-Length": str(len(body))}, body)


def without(header: str) -> Fault:
    def fault(request: BaseHTTPRequestHandler, code: int, headers: Headers, body: bytes) -> bool:
        kept = {name: value for name, value in headers.items() if name.lower() != header.lower()}
        request.close_connection = True
        return answer(request, code, kept, body)

    return fault


def edited(pattern: bytes, new: bytes) -> Fault:
    def fault(request: BaseHTTPRequestHandler, code: int, headers: Headers, body: bytes) -> bool:
        changed = re.sub(pattern, new, body)
        return answer(request, code, {**headers, "Content-Length": str(len(changed))}, changed)

    return fault


def instead(body: bytes) -> Fault:
    return lambda request, code, headers, _: answer(request, code, {**headers, "Content-Length": str(len(body))}, body)


def cut(request: BaseHTTPRequestHandler, code: int, headers: Headers, body: bytes) -> bool:
    request.close_connection = True
    return answer(request, code, headers, body[: len(body) // 2])


def no_answer(request: BaseHTTPRequestHandler, code: int, headers: Headers, body: bytes) -> bool:
    request.close_connection = True
    return True


def drip(request: BaseHTTPRequestHandler, code: int, headers: Headers, body: bytes) -> bool:
    """A byte now and then: every single read is in time, the answer never ends."""
    request.close_connection = True
    request.send_response(code)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    with contextlib.suppress(OSError):
        while True:
            request.wfile.write(b" ")
            request.wfile.flush()
            time.sleep(0.05)
    return True


# name: (fault, whose answers it spoils, the call that meets it)
CALLS: dict[str, Callable[[Store, Path], object]] = {
    "get": lambda store, folder: store.get("key"),
    "info": lambda store, folder: store.info("key"),
    "list": lambda store, folder: [info.size for info in store.list("")],
    "children": lambda store, folder: store.children(""),
    "put": lambda store, folder: store.put("key", b"data" * 100),
    "download": lambda store, folder: store.get_file("key", folder / "copy"),
}
FAULTS: dict[str, tuple[Fault, str]] = {
    "429": (status(429), "get"),
    "503 to a listing": (status(503), "list"),
    "409 to a write": (status(409), "put"),
    "a cut body": (cut, "get"),
    "a cut download": (cut, "download"),
    "no answer to a write": (no_answer, "put"),
    "no XML for a listing": (instead(b"\x00\xff not xml"), "list"),
    "a listing without keys": (edited(rb"<Key>[^<]*</Key>", b""), "list"),
    "a size that is no number": (edited(rb"<Size>\d*</Size>", b"<Size>many</Size>"), "list"),
    "a date that is none": (edited(rb"<LastModified>[^<]*<", b"<LastModified>yesterday<"), "list"),
    "a head without length": (without("Content-Length"), "info"),
    "a dripping read": (drip, "get"),
    "a dripping write": (drip, "put"),
}


@pytest.fixture
def spoiled(proxy: FailingProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[int]]]:
    """Spoils the next answers of the server, all of them by default, and shortens the deadlines; `None` heals both."""
    patient = {
        name: getattr(store_fsspec, name) for name in ("CALL_DEADLINE_S", "LIST_DEADLINE_S", "SLOWEST_BYTES_PER_S")
    }

    def spoil(fault: Fault | None, times: int = 10**9) -> list[int]:
        left = [times]
        for name, value in patient.items():
            short = 1e12 if name == "SLOWEST_BYTES_PER_S" else 1.0
            monkeypatch.setattr(store_fsspec, name, value if fault is None else short)

        def once(request: BaseHTTPRequestHandler, code: int, headers: Headers, body: bytes) -> bool:
            if left[0] <= 0 or fault is None:
                return False
            left[0] -= 1
            return fault(request, code, headers, body)

        proxy.fault = once if fault is not None else None
        return left

    yield spoil
    proxy.fault = None


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_is_recovered_from(s3_url: str, spoiled: Callable, tmp_path: Path, name: str) -> None:
    fault, call = FAULTS[name]
    store = open_store(s3_url, policy=QUICK)
    store.put("key", b"data" * 100)
    clean = CALLS[call](store, tmp_path)
    left = spoiled(fault, 1)
    answered = CALLS[call](store, tmp_path)
    assert left == [0], "the fault was met"
    assert _without_time(answered) == _without_time(clean)
    assert store.get("key") == b"data" * 100


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_stays_ends_in_one_line_and_in_time(
    s3_url: str, spoiled: Callable, tmp_path: Path, name: str
) -> None:
    fault, call = FAULTS[name]
    store = open_store(s3_url, policy=QUICK)
    store.put("key", b"data" * 100)
    spoiled(fault)
    began_s = time.monotonic()
    with pytest.raises(StoreError) as ended:
        CALLS[call](store.with_policy(NO_RETRY), tmp_path)
    assert time.monotonic() - began_s < 60
    assert "\n" not in str(ended.value).strip()
    assert not list(tmp_path.glob(".copy*")), "no half download is left"


def _without_time(answer: object) -> object:
    return (answer.key, answer.size) if hasattr(answer, "modified_s") else answer


def test_closing_returns_when_the_fault_has_ended(
    s3_url: str, spoiled: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_url, policy=NO_RETRY)
    store.exists("warm-up")
    monkeypatch.setattr("opd.runs.stream.FLUSH_INTERVAL_S", 0.01)
    streamer = Streamer()
    (tmp_path / "log").write_bytes(b"line\n" * 100)
    left = spoiled(drip)
    streamer.add(path=tmp_path / "log", store=store, key="log")
    streamer.start()
    wait_until(lambda: left[0] < 10**9, 60)
    spoiled(None)
    began_s = time.monotonic()
    assert streamer.close(), "and everything is stored"
    assert time.monotonic() - began_s < 30
    assert store.get("log") == b"line\n" * 100


def test_a_folder_marked_by_an_empty_object_is_no_file(s3_url: str, tmp_path: Path) -> None:
    # What consoles and mounts write: the object `model/onnx/`, of no bytes.
    store = open_store(s3_url)
    store.put("model/config.json", b"{}")
    store.put("model/onnx/model.onnx", b"weights")
    for marker in ("model/", "model/onnx/", "model/empty/"):
        store.filesystem.call_s3("put_object", Bucket=_bucket(s3_url), Key=f"{_prefix(s3_url)}/{marker}", Body=b"")
    assert [info.key for info in store.list("model")] == ["model/config.json", "model/onnx/model.onnx"]
    assert store.children("model") == ["config.json", "empty", "onnx"]
    assert [info.key for info in store.child("model").list("")] == ["config.json", "onnx/model.onnx"]


def _bucket(url: str) -> str:
    return url.split("/")[2]


def _prefix(url: str) -> str:
    return "/".join(url.split("/")[3:])
