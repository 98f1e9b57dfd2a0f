"""A bucket that is not there, told from an empty prefix by what gcsfs 2026.10.1 and adlfs 2026.8.0 raise for each."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from fsspec.asyn import get_loop

from opd.errors import NoBucket
from opd.store import remote
from opd.store.remote import FsspecStore

CALLS = {
    "exists": lambda store: store.exists("run.json"),
    "children": lambda store: store.children(""),
    "list": lambda store: store.list(""),
}


class Missing:
    """A file system of which every call ends by the same error."""

    loop = get_loop()

    def __init__(self, fail: Callable[[], None]) -> None:
        self.fail = fail

    async def _info(self, *_: object, **__: object) -> None:
        self.fail()

    _ls = _find = _info


class ResourceNotFoundError(Exception):
    """Azure's."""

    def __init__(self, error_code: str) -> None:
        super().__init__(error_code)
        self.error_code = error_code


def gcsfs(address: str) -> Callable[[], None]:
    def fail() -> None:
        raise FileNotFoundError(address)

    return fail


def adlfs(error_code: str) -> Callable[[], None]:
    def fail() -> None:
        try:
            raise ResourceNotFoundError(error_code)
        except ResourceNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "buckt/runs")  # noqa: B904 - as adlfs does

    return fail


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], FsspecStore]:
    monkeypatch.setattr(remote, "_client_errors", lambda service: ())  # of packages that need not be installed here
    return lambda url, fail: FsspecStore(url, filesystem=Missing(fail))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_of_gcs_is_told(opened: Callable, call: str) -> None:
    with pytest.raises(NoBucket, match="bucket 'buckt' does not exist"):
        CALLS[call](opened("gs://buckt/runs", gcsfs("b/buckt/o")))


def test_a_missing_container_of_azure_is_told_by_a_listing(opened: Callable) -> None:
    with pytest.raises(NoBucket, match="bucket 'buckt' does not exist"):
        opened("az://buckt/runs", adlfs("ContainerNotFound")).children("")


@pytest.mark.parametrize(
    ("url", "fail"), [("gs://buckt/runs", gcsfs("b/buckt/o/runs")), ("az://buckt/runs", adlfs("BlobNotFound"))]
)
def test_a_prefix_without_objects_is_empty(opened: Callable, url: str, fail: Callable[[], None]) -> None:
    store = opened(url, fail)
    assert (store.exists("run.json"), store.children(""), store.list("")) == (False, [], [])
