"""Small files of a run for people: written to the disk at once, and to the store as soon as it takes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from opd.errors import StoreError
from opd.runs.run import Run
from opd.store.base import NO_RETRY

logger = logging.getLogger(__name__)


class KeptFiles:
    """Files that wait for the store until the next call."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()

    def put(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Write contents by key in the run directory; an unreachable store costs one try."""
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
