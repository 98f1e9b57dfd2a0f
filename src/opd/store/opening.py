"""The choice of a store by its URL or path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opd.store.base import DEFAULT_POLICY, RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.remote import FsspecStore


def open_store(
    url: str | Path, *, policy: RetryPolicy = DEFAULT_POLICY, environment: Mapping[str, str] | None = None
) -> Store:
    """Open the store at a local path, a `file://` URL or another fsspec URL.

    Args:
        environment: variables with the access settings, in place of the process's own.

    Raises:
        CreateOnlyUnsupported: the URL's service is not known to have a create-only write.
        StoreRefused: the service's fsspec package is not installed.
    """
    path = str(url).removeprefix("file://")
    return (
        FsspecStore(path, policy=policy, environment=environment)
        if "://" in path
        else LocalStore(Path(path), policy=policy)
    )
