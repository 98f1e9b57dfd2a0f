"""Forwards the connections of a local port: one thread a direction, until either side is done."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

CHUNK_BYTES = 2**16


class Connection(Protocol):
    """What is used of a socket; the Kubernetes client's forwarded ports are like it."""

    def recv(self, num_bytes: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Forwarder:
    """Listens on this machine only; `connect` opens the other end for each connection.

    Args:
        connect: raises OSError where the other end cannot be reached; that connection is then closed, and `on_error` told.
        port: to listen on; 0 for any free one.
    """

    def __init__(self, connect: Callable[[], Connection], *, port: int, on_error: Callable[[str], None]):
        self.connect = connect
        self.on_error = on_error
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self.listener.getsockname()[1]

    def serve(self) -> None:
        """Accepts until the listener is closed."""
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def close(self) -> None:
        # A thread that is blocked in accept() is only woken by a shutdown.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _join(self, near: socket.socket) -> None:
        try:
            far = self.connect()
        except OSError as error:
            self.on_error(str(error))
            near.close()
            return
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        near.close()
        far.close()


def _pump(source: Connection, target: Connection) -> None:
    """Copies until the source has no more; then the target is told so, and may go on answering."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
