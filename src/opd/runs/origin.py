"""What an attempt ran, on what, and where else it logs: version and commit of this package, image, Python, devices, trackers, and
what it found of its teacher; told to readers, asked by nobody else."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from opd.errors import CorruptRecord, StoreError
from opd.runs.attempts import attempt_prefix
from opd.store.base import Store

logger = logging.getLogger(__name__)

FILE = "origin.json"
REVISION_VARIABLE = "OPD_REVISION"
"""Set by our images: the commit that they were built from."""
IMAGE_VARIABLE = "OPD_IMAGE"
"""Set by our charts: the image's reference, with its digest."""
GIT_TIMEOUT_S = 10.0


def file_key(attempt: int) -> str:
    """Where an attempt's origin lies in the run directory."""
    return f"{attempt_prefix(attempt)}/{FILE}"


def origin(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of this process; what cannot be told is empty."""
    return {
        "version": _version(),
        "commit": environment.get(REVISION_VARIABLE) or _commit_of_checkout(Path(__file__).resolve().parents[3]),
        "image": environment.get(IMAGE_VARIABLE, ""),
        "python": platform.python_version(),
    }


def tell(store: Store, attempt: int) -> None:
    """Write it into the run directory; a store that is away just then costs readers that, and the run nothing."""
    try:
        store.put_json(file_key(attempt), origin())
    except StoreError as error:
        logger.warning("version and commit of attempt %d are not stored: %s", attempt, error)


def add(store: Store, attempt: int, *, devices: Iterable[str], trackers: Mapping[str, str]) -> None:
    """Add what is known once the workers are up; a store that is away just then costs readers that, and the run nothing.

    Args:
        devices: each rank's, by its own name.
        trackers: URL of this run by tracker.
    """
    _add(store, attempt, devices=dict(Counter(devices)), trackers=dict(trackers))


def add_preflight(store: Store, attempt: int, lines: Iterable[Mapping[str, str]]) -> None:
    """Add what the first step showed of the teacher; a store that is away just then costs readers that, and the run nothing."""
    _add(store, attempt, preflight=list(lines))


def _add(store: Store, attempt: int, **found: Any) -> None:
    try:
        told = store.get_json(file_key(attempt)) or {}
        store.put_json(file_key(attempt), {**told, **found})
    except (StoreError, CorruptRecord) as error:
        logger.warning("%s of attempt %d are not stored: %s", " and ".join(found), attempt, error)


def _version() -> str:
    """Empty where the package is not installed: only PYTHONPATH names its sources."""
    try:
        return version("opd")
    except PackageNotFoundError:
        return ""


def _commit_of_checkout(folder: Path) -> str:
    """The commit of a checkout, `-dirty` behind it where files differ from it; empty for an installed package."""
    if not (folder / ".git").exists():
        return ""
    # A tag's name would say less; a repository of another owner is refused, which is no reason to stop.
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
