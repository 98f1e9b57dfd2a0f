"""One question to a model behind an OpenAI-compatible endpoint: bounded in time, in tries and in bytes."""

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from opd.envs.travel.plan import PlanError
from opd.rewards.protocol import WrongConfiguration

API_KEY_VARIABLE = "OPD_CONVERTER_API_KEY"
MAX_TRIES = 4
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 20.0
MAX_REPLY_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16
_MAX_TOLD_CHARS = 300
_BUSY = {408, 409, 425, 429}
_UNFIT = {400, 413, 422}
"""What a server says of one question, such as one too long for its model."""
T = TypeVar("T")


class Endpoint(NamedTuple):
    """Where a model is asked.

    Attributes:
        url: of the API, without `/chat/completions`. model: by the server's name. timeout_s: of all tries together.
    """

    url: str
    model: str
    timeout_s: float


class ConversionFailed(Exception):
    """The endpoint gave no answer in time, or refused this question: it says nothing about the report."""


class _TryAgain(ConversionFailed):
    """One try failed in a way that the next may not."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """What the server asked for (`Retry-After`)."""


def ask(endpoint: Endpoint, messages: Sequence[Mapping[str, str]], read: Callable[[str], T]) -> T:
    """What `read` makes of the model's answer; asked again where none came or it was unfit, `MAX_TRIES` times at most.

    Raises:
        WrongConfiguration: address, model or key is refused: no other question would fare better.
        ConversionFailed: no answer in time, one cut at the model's limit, or a refusal of this question.
        PlanError: every try had an answer, and `read` raised it for each.
    """
    until = time.monotonic() + endpoint.timeout_s
    backoff = wait_exponential(multiplier=FIRST_WAIT_S, max=MAX_WAIT_S) + wait_random(0, FIRST_WAIT_S)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        return max(backoff(state), error.wait_s if isinstance(error, _TryAgain) else 0.0)

    retrying = Retrying(
        retry=retry_if_exception_type((_TryAgain, PlanError)),
        wait=wait,
        stop=stop_after_attempt(MAX_TRIES) | stop_before_delay(endpoint.timeout_s),
        reraise=True,
    )
    passing: list[_TryAgain] = []

    def once() -> T:
        try:
            text = _told(endpoint, _posted(endpoint, messages, until))
        except _TryAgain as fault:
            passing.append(fault)
            raise
        return read(text)

    try:
        return retrying(once)
    except PlanError as error:
        if passing:
            raise passing[-1] from error
        raise


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: following it would carry the key to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _posted(endpoint: Endpoint, messages: Sequence[Mapping[str, str]], until: float) -> bytes:
    """The body of a good answer, which has come whole before `until` (of `time.monotonic`)."""
    body = {
        "model": endpoint.model,
        "messages": list(messages),
        "temperature": 0,
        "response_format": {"type": "json_object"},
    }
    headers = {"Content-Type": "application/json"}
    if key := _key():
        headers["Authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(_address(endpoint), json.dumps(body).encode(), headers)
        with _OPENER.open(request, timeout=_left(endpoint, until)) as reply:
            return _read(endpoint, reply, until)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(endpoint, error, until) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if _is_for_good(error):
            raise WrongConfiguration(
                f"reward.converter.url = {_address(endpoint)}: {type(error).__name__}: {error}; give an http:// or https:// "
                "address that can be asked, with a certificate of an authority that is known here (SSL_CERT_FILE)"
            ) from None
        _left(endpoint, until)
        raise _TryAgain(f"{_address(endpoint)}: {type(error).__name__}: {error}") from None


def _is_for_good(error: Exception) -> bool:
    """Whether an address can never be asked: urllib cannot read it, or its server's certificate cannot be verified."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(reason, ssl.SSLCertVerificationError | http.client.InvalidURL | ValueError)


def _key() -> str:
    """The key, without the line break that a Secret made of a file ends with; empty where there is none.

    Raises:
        WrongConfiguration: no HTTP header can hold it.
    """
    key = os.environ.get(API_KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise WrongConfiguration(
            f"{API_KEY_VARIABLE} holds a line break or a character that is not printable ASCII, and is sent in a header: "
            "give the key alone, on one line, on a cluster in the Secret of cluster.secrets.converter"
        )
    return key


def _read(endpoint: Endpoint, reply: http.client.HTTPResponse, until: float) -> bytes:
    parts: list[bytes] = []
    while part := reply.read1(_CHUNK_BYTES):
        parts.append(part)
        if sum(map(len, parts)) > MAX_REPLY_BYTES:
            raise ConversionFailed(f"{_address(endpoint)}: an answer of more than {MAX_REPLY_BYTES} bytes")
        _left(endpoint, until)
    return b"".join(parts)


def _left(endpoint: Endpoint, until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise ConversionFailed(
            f"{_address(endpoint)}: no whole answer in {endpoint.timeout_s:g} s; raise reward.converter.timeout_s"
        )
    return left


def _told(endpoint: Endpoint, body: bytes) -> str:
    """The text of the first choice."""
    try:
        choice = json.loads(body)["choices"][0]
        text, is_cut = choice["message"]["content"], choice.get("finish_reason") == "length"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _TryAgain(f"{_address(endpoint)}: no chat completion ({type(error).__name__}): {_shown(body)}") from None
    if is_cut:
        raise _TryAgain(f"{_address(endpoint)}: the answer was cut at its model's limit; raise it at the server")
    if not isinstance(text, str):
        raise _TryAgain(f"{_address(endpoint)}: a chat completion without text: {_shown(body)}")
    return text


def _refusal(endpoint: Endpoint, error: urllib.error.HTTPError, until: float) -> Exception:
    told = f"{_address(endpoint)}: HTTP {error.code}: {_shown(_came(error, until))}"
    if error.code in (401, 403):
        has = "is refused" if _key() else "is not set"
        return WrongConfiguration(
            f"reward.converter.url = {told}; the key {API_KEY_VARIABLE} {has}: set it in the environment, on a cluster by "
            "cluster.secrets.converter"
        )
    if error.code in _BUSY or error.code >= 500:
        return _TryAgain(told, _seconds(error.headers.get("Retry-After")))
    if error.code in _UNFIT:
        return ConversionFailed(told)
    return WrongConfiguration(
        f"reward.converter.url = {told}; give the address whose /chat/completions answers, and in reward.converter.model "
        f"({endpoint.model}) a model that it has"
    )


def _came(error: urllib.error.HTTPError, until: float) -> bytes:
    """What comes of an error's text before `until`: its status says what it is, so that the text may be cut or missing."""
    body = b""
    try:
        while len(body) < _CHUNK_BYTES and time.monotonic() < until and (part := error.read1(_CHUNK_BYTES)):
            body += part
    except (OSError, http.client.HTTPException):
        pass
    return body


def _seconds(text: str | None) -> float:
    """`Retry-After` where it is a number of seconds; a date counts as none."""
    return min(float(text), MAX_WAIT_S) if text is not None and text.strip().isdecimal() else 0.0


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.url.rstrip('/')}/chat/completions"


def _shown(body: bytes) -> str:
    """What a server said, short, on one line and without the key, which some repeat."""
    text, key = body.decode(errors="replace"), _key()
    return repr(" ".join((text.replace(key, "<redacted>") if key else text).split())[:_MAX_TOLD_CHARS])
