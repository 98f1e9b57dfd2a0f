"""A real S3 server over HTTP (versitygw, built from its Go module) and a proxy before it that fails on demand."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.ports import free_ports

import gotools

ACCESS_KEY, SECRET_KEY = "opd-test", "opd-test-secret"
BUCKET = "runs"
# Of the caller's shell, they would outrank what `environment` sets.
FOREIGN_VARIABLES = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy")


@contextmanager
def running_server(folder: Path) -> Iterator[int]:
    """The port of a running server with one empty bucket, whose objects are files below `folder`."""
    (folder / "data" / BUCKET).mkdir(parents=True)
    [port] = free_ports(1)
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [str(gotools.install("versitygw")), "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "the S3 server does not answer"
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(30)


def environment(port: int) -> dict[str, str]:
    """Endpoint and credentials for a client of the server or of a proxy before it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def clear_clients() -> None:
    """Have the next store read the environment again: fsspec caches clients by their arguments, not by it."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


@dataclass
class FailingProxy:
    """Passes requests on, and answers 503 while `is_away`."""

    server_port: int
    is_away: bool = False
    num_refused: int = 0
    # Given the request and the server's (status, headers, body), answers in its place; False leaves it to the proxy.
    fault: Callable[[BaseHTTPRequestHandler, int, dict[str, str], bytes], bool] | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    address: str = "127.0.0.1"  # where it listens, and where the server does
    port: int = 0

    @contextmanager
    def running(self) -> Iterator[FailingProxy]:
        """Listens on `port` until the block is left."""
        server = self.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def start(self) -> ThreadingHTTPServer:
        """Starts to listen on `port`, 0 for a free one, in a thread; the caller shuts the server down."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer((self.address, self.port), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answers one request: with 503, or with what the server says."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests.append((request.command, request.path))
        if self.is_away:
            self._refuse(request)
            return
        response, data = self._ask_server(request, body)
        left_out = ("content-length", "transfer-encoding", "connection", "date", "server")
        headers = {name: value for name, value in response.getheaders() if name.lower() not in left_out}
        length = response.getheader("Content-Length") if request.command == "HEAD" else str(len(data))
        headers["Content-Length"] = length or "0"
        if self.fault is not None and self.fault(request, response.status, headers, data):
            return
        request.send_response(response.status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)

    def _refuse(self, request: BaseHTTPRequestHandler) -> None:
        self.num_refused += 1
        answer = b"<Error><Code>ServiceUnavailable</Code><Message>away</Message></Error>"
        request.send_response(503)
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer)

    def _ask_server(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        upstream = http.client.HTTPConnection(self.address, self.server_port, timeout=60)
        upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        response = upstream.getresponse()
        data = response.read()
        upstream.close()
        return response, data
