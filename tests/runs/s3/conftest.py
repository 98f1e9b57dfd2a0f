"""A real S3 server over HTTP (versitygw, built from its Go module) and a proxy before it that fails on demand."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

MODULE_FOLDER = Path(__file__).parent
SERVER_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
ACCESS_KEY, SECRET_KEY = "opd-test", "opd-test-secret"
BUCKET = "runs"
BUILD_TIMEOUT_S = 800


def build_server() -> Path:
    """The server's binary, built once per go.sum and cached outside the work tree."""
    version = hashlib.sha256((MODULE_FOLDER / "go.sum").read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opd" / "versitygw"
    binary = cache / version
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        pytest.skip("S3 UNTESTED: no Go on PATH to build versitygw with")
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{version}.{os.getpid()}"
    command = [go, "build", "-mod=readonly", "-o", str(partial), SERVER_PACKAGE]
    built = subprocess.run(command, cwd=MODULE_FOLDER, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    if built.returncode:
        pytest.fail(f"versitygw does not build:\n{built.stderr[-2000:]}")
    partial.rename(binary)
    return binary


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a running server with one empty bucket."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "data" / BUCKET).mkdir(parents=True)
    port = free_port()
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [str(build_server()), "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")]
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


@dataclass
class FailingProxy:
    """Passes requests on, answers 503 while `is_away` or to the next `num_refusals` requests, and loses the answers to
    the next `num_lost_answers` PUTs."""

    server_port: int
    is_away: bool = False
    num_refusals: int = 0
    num_lost_answers: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    def start(self) -> ThreadingHTTPServer:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests.append((request.command, request.path))
        if self.is_away or self.num_refusals > 0:
            self.num_refusals -= 1
            answer = b"<Error><Code>ServiceUnavailable</Code><Message>away</Message></Error>"
            request.send_response(503)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(answer)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        response = upstream.getresponse()
        data = response.read()
        upstream.close()
        if request.command == "PUT" and self.num_lost_answers > 0:
            self.num_lost_answers -= 1
            request.close_connection = True  # the server has done it; nobody is told
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        request.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                request.send_header(name, value)
        length = response.getheader("Content-Length") if request.command == "HEAD" else str(len(data))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)


@pytest.fixture
def proxy(s3_server: int) -> Iterator[FailingProxy]:
    proxy = FailingProxy(server_port=s3_server)
    server = proxy.start()
    yield proxy
    server.shutdown()
    server.server_close()


@pytest.fixture
def s3_environment(
    proxy: FailingProxy, monkeypatch: pytest.MonkeyPatch, fresh_filesystem: Callable[[], None]
) -> Iterator[dict[str, str]]:
    """Endpoint (through the proxy) and credentials, set here and to be passed to children."""
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    fresh_filesystem()  # fsspec caches clients by their arguments, which the endpoint of the environment is not among
    yield environment
    fresh_filesystem()


@pytest.fixture
def s3_url(s3_environment: dict[str, str], request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return f"s3://{BUCKET}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"


@pytest.fixture
def fresh_filesystem() -> Callable[[], None]:
    """Has the next store read the environment again instead of taking fsspec's cached client."""
    import s3fs

    return s3fs.S3FileSystem.clear_instance_cache
