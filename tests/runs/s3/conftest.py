"""Fixtures around the real S3 server of `server.py` and the proxy before it."""

import hashlib
from collections.abc import Callable, Iterator

import pytest
from tests.programs import need
from tests.runs.s3.server import BUCKET, FOREIGN_VARIABLES, FailingProxy, clear_clients, environment, running_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a running server with one empty bucket."""
    need("versitygw", build=True)
    with running_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def proxy(s3_server: int) -> Iterator[FailingProxy]:
    with FailingProxy(server_port=s3_server).running() as proxy:
        yield proxy


@pytest.fixture
def s3_environment(
    proxy: FailingProxy, monkeypatch: pytest.MonkeyPatch, fresh_filesystem: Callable[[], None]
) -> Iterator[dict[str, str]]:
    """Endpoint (through the proxy) and credentials, set here and to be passed to children."""
    variables = environment(proxy.port)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in FOREIGN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    fresh_filesystem()
    yield variables
    fresh_filesystem()


@pytest.fixture
def s3_url(s3_environment: dict[str, str], request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return f"s3://{BUCKET}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"


@pytest.fixture
def fresh_filesystem() -> Callable[[], None]:
    """Has the next store read the environment again instead of taking fsspec's cached client."""
    return clear_clients
