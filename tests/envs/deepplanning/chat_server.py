"""A server on this machine that speaks the chat API of OpenAI, and fails as it is told."""

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY, MODEL = "sesame-open-1-2-3", "planner-1"
Act = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One connection: checks the request as the API does, then plays the next act."""

    server: "ChatServer"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((dict(self.headers), body))
        if self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        elif self.path != "/v1/chat/completions":
            self.answer(404, {"error": {"message": f"no such path {self.path}"}})
        elif body["model"] != MODEL:
            self.answer(404, {"error": {"message": f"the model {body['model']} does not exist"}})
        else:
            self.server.next_act()(self)

    def answer(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


class ChatServer(ThreadingHTTPServer):
    """`acts` are played one a request, the last again and again."""

    daemon_threads = True

    def __init__(self, acts: Iterable[Act], key: str | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts, self.key = list(acts), key
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.released = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return (
            f"{'https' if isinstance(self.socket, ssl.SSLSocket) else 'http'}://127.0.0.1:{self.server_address[1]}/v1"
        )

    def next_act(self) -> Act:
        with self._lock:
            return self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]


def completion(text: str, reason: str = "stop") -> Act:
    """A good answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return lambda handler: handler.answer(200, {"object": "chat.completion", "model": MODEL, "choices": [choice]})


def refusal(status: int, **headers: str) -> Act:
    """An error of the API."""
    return lambda handler: handler.answer(status, {"error": {"message": f"status {status}"}}, **headers)


def raw(body: bytes) -> Act:
    """A body that is no completion."""
    return lambda handler: handler.answer(200, body)


def hung_up(handler: Handler) -> None:
    """The connection ends without an answer."""
    handler.close_connection = True


def silent(handler: Handler) -> None:
    """No answer until the server is released."""
    handler.server.released.wait(60)


def dripping(handler: Handler, status: int = 200) -> None:
    """An answer byte by byte, faster than any time-out of one read, for as long as the caller listens."""
    handler.send_response(status)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    try:
        while not handler.server.released.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:
        pass


def without_text(status: int) -> Act:
    """An error whose text never comes: the connection ends behind the headers."""

    def act(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

    return act


@contextmanager
def serving(*acts: Act, key: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[ChatServer]:
    """A running server."""
    server = ChatServer(acts, key)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
