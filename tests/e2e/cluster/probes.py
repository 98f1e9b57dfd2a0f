"""Probes of servers over HTTP and TCP, past any proxy of the caller's."""

import http.client
import socket
import ssl
import urllib.request


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Return True if a GET returns 200 within five seconds; `context` has the trusted certificates for https."""
    handlers = [urllib.request.HTTPSHandler(context=context)] if context else []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    try:
        with opener.open(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, http.client.HTTPException):  # also one that ends within its answer, as a server does that starts
        return False


def is_listening(address: str, port: int) -> bool:
    """Return True if a server accepts TCP connections there."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True
