"""What a measurement on a GPU ran on: device, driver, versions, commit, day."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch
from tests.commit import this_commit

ROOT = Path(__file__).resolve().parents[2]


def machine(*packages: str) -> dict[str, str | None]:
    """The facts that a results file carries; a package that is not installed is None."""
    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    return {
        "device": torch.cuda.get_device_name(),
        "driver_and_power_limit": driver,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
        "commit": this_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
