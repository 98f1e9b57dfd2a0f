"""A program of pods: `python -m opd.pods.fetch URL --sha256 HASH --to FOLDER` brings a verified file or tar archive."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from opd.store.access import open_url
from opd.store.base import leads_out

CHUNK_BYTES = 8 * 2**20


class FetchError(RuntimeError):
    """An archive with a wrong hash or unsafe members."""


def fetch(url: str, sha256: str, folder: Path) -> list[str]:
    """Download any fsspec URL, verify, and unpack a tar archive; nothing appears in `folder` unless the hash is right.

    Returns:
        Names of the new entries in `folder`.

    Raises:
        FetchError: the hash differs, or the archive has members that lead out of it or are neither file nor folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        part = Path(scratch) / url.rstrip("/").rpartition("/")[2]
        found = hashlib.sha256()
        with open_url(url, "rb") as source, open(part, "wb") as target:
            while chunk := source.read(CHUNK_BYTES):
                found.update(chunk)
                target.write(chunk)
        if found.hexdigest() != sha256:
            raise FetchError(f"{url} has SHA-256 {found.hexdigest()}, expected {sha256}: refused")
        entries = _unpacked(part, Path(scratch) / "unpacked") if tarfile.is_tarfile(part) else [part]
        for entry in entries:
            entry.replace(folder / entry.name)
        return sorted(entry.name for entry in entries)


def _unpacked(archive: Path, target: Path) -> list[Path]:
    """Unpack files and folders only. Python has tarfile's filters since 3.11.4, and Debian 12 has 3.11.2."""
    target.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.lstrip("/")
            if leads_out(name) or not (member.isfile() or member.isdir()):
                raise FetchError(f"{archive.name} holds an unsafe member: {member.name!r}")
            path = target / name
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            if (source := tar.extractfile(member)) is not None:
                with source, open(path, "wb") as file:
                    shutil.copyfileobj(source, file, CHUNK_BYTES)
    return list(target.iterdir())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m opd.pods.fetch", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER")
    args = parser.parse_args(argv)
    try:
        names = fetch(args.url, args.sha256, args.to)
    except (FetchError, OSError) as error:
        print(f"opd.pods.fetch: {error}", file=sys.stderr)
        return 1
    print(f"opd.pods.fetch: {', '.join(names)} from {args.url}, verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
