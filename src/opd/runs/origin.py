"""origin.json of an attempt, for readers: version, commit, image, Python, devices and trackers."""

import contextlib
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from opd.errors import CorruptRecord, StoreError
from opd.runs.attempts import attempt_prefix
from opd.store.base import Store

logger = logging.getLogger(__name__)

REVISION_VARIABLE = "OPD_REVISION"  # set by our images: the commit that they were built from
IMAGE_VARIABLE = "OPD_IMAGE"  # set by our charts: the image's reference, with its digest
GIT_TIMEOUT_S = 10.0


def file_key(attempt: int) -> str:
    """Return the file's key in the run directory."""
    return f"{attempt_prefix(attempt)}/origin.json"


def version_of(package: str) -> str:
    """Return the package's version; empty where it is not installed and only PYTHONPATH names its sources."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def origin(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return this process's origin; an unknown value is empty."""
    return {
        "version": version_of("opd"),
        "commit": environment.get(REVISION_VARIABLE) or _commit_of_checkout(Path(__file__).resolve().parents[3]),
        "image": environment.get(IMAGE_VARIABLE, ""),
        "python": platform.python_version(),
    }


def add(store: Store, attempt: int, **found: Any) -> None:
    """Add values to an attempt's record; an unreachable store costs readers the values, and the run nothing."""
    try:
        store.put_json(file_key(attempt), {**(store.get_json(file_key(attempt)) or {}), **found})
    except (StoreError, CorruptRecord) as error:
        logger.warning("%s of attempt %d are not stored: %s", " and ".join(found), attempt, error)


def _commit_of_checkout(folder: Path) -> str:
    """Return the commit of a checkout, with `-dirty` where files differ from it; empty for an installed package."""
    if not (folder / ".git").exists():
        return ""
    # A tag's name says less than the commit; git rejects a repository of another owner, which ends nothing here.
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S).stdout.strip()
    return ""
