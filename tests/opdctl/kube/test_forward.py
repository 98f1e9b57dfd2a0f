"""A local port that leads to a real server, over real sockets."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opdctl.forward import Forwarder

BODY = bytes(range(256)) * 4096


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_address[1]
        running.shutdown()


def test_connections_reach_the_other_end_and_the_port_closes(server: int) -> None:
    errors: list[str] = []
    forwarder = Forwarder(lambda: socket.create_connection(("127.0.0.1", server)), port=0, on_error=errors.append)
    serving = threading.Thread(target=forwarder.serve)
    serving.start()
    for _ in range(3):
        with urllib.request.urlopen(f"http://127.0.0.1:{forwarder.port}/", timeout=30) as answer:
            assert answer.read() == BODY
    forwarder.close()
    serving.join(30)
    assert not serving.is_alive()
    assert errors == []


def test_an_end_that_takes_no_connection_is_told_and_the_port_goes_on() -> None:
    def refuse() -> socket.socket:
        raise ConnectionError("no head")

    errors: list[str] = []
    forwarder = Forwarder(refuse, port=0, on_error=errors.append)
    threading.Thread(target=forwarder.serve, daemon=True).start()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", forwarder.port), timeout=30) as near:
            assert near.recv(1) == b""
    forwarder.close()
    assert errors == ["no head", "no head"]


def test_only_this_machine_can_connect() -> None:
    forwarder = Forwarder(lambda: socket.socket(), port=0, on_error=lambda text: None)
    assert forwarder.listener.getsockname()[0] == "127.0.0.1"
    forwarder.close()
