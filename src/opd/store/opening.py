"""Which store a URL or path means: a local folder, or a service behind fsspec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opd.store.base import DEFAULT_POLICY, RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.remote import FsspecStore


def open_store(
    url: str | Path, *, policy: RetryPolicy = DEFAULT_POLICY, environment: Mapping[str, str] | None = None
) -> Store:
    """The store behind a local path, a `file://` URL or another fsspec URL.

    Args:
        environment: variables that say how to reach it, instead of the process's own.

    Raises:
        CreateOnlyUnsupported: the URL's service is not known to have a create-only write.
        StoreRefused: the service's fsspec package is not installed.
    """
    text = str(url)
    if "://" not in text:
        return LocalStore(Path(text), policy=policy)
    if text.startswith("file://"):
        return LocalStore(Path(text.removeprefix("file://")), policy=policy)
    return FsspecStore(text, policy=policy, environment=environment)
