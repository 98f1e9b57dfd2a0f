"""Small files of a run for a person to read: on the disk at once, in the store as soon as it takes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from opd.errors import StoreError
from opd.runs.writer import RunWriter
from opd.store.base import NO_RETRY

logger = logging.getLogger(__name__)


class KeptFiles:
    """Writes them; what the store does not take is offered again with the next ones."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()

    def put(self, run: RunWriter, files: Mapping[str, bytes]) -> None:
        """Contents by key in the run directory; a store that is away costs one try."""
        for key, content in files.items():
            run.local.put(key, content)
        if run.remote is None:
            return
        self._waiting.update(files)
        remote = run.remote.with_policy(NO_RETRY)
        for key in sorted(self._waiting):
            try:
                remote.put_file(key, Path(run.handle.local_dir) / key)
            except StoreError as error:
                folder = key.partition("/")[0]
                logger.warning("%d files of %s/ wait for the store: %s", len(self._waiting), folder, error)
                return
            self._waiting.discard(key)
