"""Serves a report on this machine: made anew for each question that finds the runs changed."""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from opdctl.console import note
from opdctl.redact import one_line
from opdctl.report.beside import Write
from opdctl.runs.gather import GatheredRun

HOST = "127.0.0.1"
STEM = "report"
HEADERS = {
    # The page's own policy says which scripts run; this what no page can say of itself.
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, kw_only=True)
class Pages:
    """A report and what lies beside it."""

    by_name: Mapping[str, bytes]
    """The report as `report.html`."""
    tag: str
    """An ETag: another one whenever the pages were made anew."""


class Source:
    """The pages as the runs are now.

    Args:
        look: reads the runs.
        make: makes the pages of what was read.
    """

    def __init__(self, look: Callable[[], Sequence[GatheredRun]], make: Callable[[Sequence[GatheredRun], Write], None]):
        self._look, self._make = look, make
        self._lock = threading.Lock()
        self._mark: object = None
        self._tags = (f'"{secrets.token_hex(4)}-{number}"' for number in itertools.count(1))
        self._pages = Pages(by_name={}, tag="")
        self._num_looks = 0
        self._error: Exception | None = None

    def pages(self) -> Pages:
        """Looks at the runs, one caller at a time; who has waited since before a look takes what came of it.

        Raises:
            Exception: whatever `look` and `make` raise.
        """
        num_looks = self._num_looks
        with self._lock:
            if num_looks == self._num_looks:
                self._num_looks += 1
                try:
                    self._look_again()
                    self._error = None
                except Exception as error:  # noqa: BLE001 - raised below, for everybody who has waited for it
                    self._error = error
            if self._error is not None:
                raise self._error
            return self._pages

    def _look_again(self) -> None:
        runs = self._look()
        mark = [(run.record.url, run.fingerprint, run.record.state) for run in runs]
        if mark != self._mark:
            made: dict[str, bytes] = {}
            self._make(runs, lambda name, html: made.update({name: html.encode()}))
            self._mark, self._pages = mark, Pages(by_name=made, tag=next(self._tags))


class LiveServer(ThreadingHTTPServer):
    """Answers this machine only, and only who asks by its address: no other site's page may read it by a name of its own.

    Args:
        port: to listen on; 0 for any free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, source: Source, *, port: int):
        super().__init__((HOST, port), _Handler)
        self.source = source
        self.names = names(self.server_port)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, *request: Any) -> None:
        """Nothing of a browser that has gone: whoever closes a tab need not wait for the page."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(*request)


def names(port: int) -> frozenset[str]:
    """What the header `Host` may say, in small letters; browsers leave the port of HTTP itself out."""
    hosts = (HOST, "localhost")
    return frozenset({f"{host}:{port}" for host in hosts} | (set(hosts) if port == HTTP_PORT else set()))


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60.0

    def do_GET(self) -> None:
        if self.headers.get("Host", "").lower() not in self.server.names:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, f"ask for {self.server.url}\n".encode())
            return
        name = unquote(urlsplit(self.path).path).removeprefix("/") or f"{STEM}.html"
        try:
            pages = self.server.source.pages()
        except Exception as error:  # noqa: BLE001 - whatever a look met, the next one may find it mended
            why = one_line(f"the runs could not be read: {error}")
            note(f"warning: {why}")
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode())
            return
        page = pages.by_name.get(name)
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, b"no such page\n")
        elif self.headers.get("If-None-Match") == pages.tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", tag=pages.tag)
        else:
            self._answer(HTTPStatus.OK, page, kind="text/html", tag=pages.tag)

    def _answer(self, status: HTTPStatus, body: bytes, *, kind: str = "text/plain", tag: str = "") -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """No line for each of a page's questions, nor for a connection that nobody uses any more."""
