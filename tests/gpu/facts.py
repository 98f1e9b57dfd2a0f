"""Records of measurements on a GPU: the machine with its versions, and a compact file."""

import datetime
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

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


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write numbers in six digits, one line for each entry of the record's lists and tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in record.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: Any) -> str:
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        return "{\n" + ",\n".join(f" {json.dumps(name)}: {_line(item)}" for name, item in value.items()) + "\n}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(f" {_line(item)}" for item in value) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
