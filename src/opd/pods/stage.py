"""The Job of manifests/stage.yaml: `python -m opd.pods.stage SOURCE --to FOLDER` fills a claim from a store or the hub.

A second start fetches only missing files. With `--sha256 HASH` the source is one file, such as a tool database in a tar
archive, which is verified and unpacked.
"""

import argparse
import hashlib
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec

from opd.errors import RunError
from opd.inputs.fetch import FetchError, mirror
from opd.inputs.models import is_hub_id, needed_files
from opd.store.access import is_store_url, storage_options

CHUNK_BYTES = 8 * 2**20


def stage(source: str, folder: Path, *, revision: str, kind: str) -> int:
    """Fill a folder from a store URL (folder or single object) or a hub repository; return the number of its files.

    Raises:
        RunError: the store or an object of it cannot be used.
        ValueError: `source` is neither.
        OSError: the hub is unreachable or has no such repository, or the disk is full.
    """
    if is_store_url(source):
        return mirror(source, folder)
    if not is_hub_id(source):
        raise ValueError(f"{source!r} is neither a store URL (s3://...) nor a hub id (owner/name)")
    from huggingface_hub import HfApi, snapshot_download

    info: Any = HfApi().repo_info(source, repo_type=kind, revision=revision or None)
    names = [one.rfilename for one in info.siblings or ()]
    only = needed_files(names) if kind == "model" else None
    print(f"opd.pods.stage: {kind} {source} at commit {info.sha}", flush=True)
    # The hub's client verifies and resumes file by file.
    snapshot_download(source, repo_type=kind, revision=info.sha, local_dir=folder, allow_patterns=only)
    return len(only or names)


def fetch(url: str, sha256: str, folder: Path) -> list[str]:
    """Download any fsspec URL, verify, and unpack a tar archive; nothing appears in `folder` unless the hash is right.

    Returns:
        Names of the new entries in `folder`.

    Raises:
        FetchError: the hash differs, or the archive has members that lead out of it or are devices.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        part, unpacked = Path(scratch) / url.rstrip("/").rpartition("/")[2], Path(scratch) / "unpacked"
        found = hashlib.sha256()
        with fsspec.open(url, "rb", **storage_options(url)) as source, open(part, "wb") as target:
            while chunk := source.read(CHUNK_BYTES):
                found.update(chunk)
                target.write(chunk)
        if found.hexdigest() != sha256:
            raise FetchError(f"{url} has SHA-256 {found.hexdigest()}, expected {sha256}: refused")
        entries = [part]
        if tarfile.is_tarfile(part):
            try:
                with tarfile.open(part) as tar:
                    tar.extractall(unpacked, filter="data")  # our images have the filter, Python before 3.11.4 has not
            except tarfile.FilterError as error:
                raise FetchError(f"{part.name} holds an unsafe member: {error}") from error
            entries = list(unpacked.iterdir())
        for entry in entries:
            entry.replace(folder / entry.name)
        return sorted(entry.name for entry in entries)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m opd.pods.stage", description=__doc__.splitlines()[0])
    parser.add_argument("source", help="s3://..., or owner/name on the hub")
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--revision", default="", help="branch, tag or commit of a hub repository")
    parser.add_argument(
        "--dataset", dest="kind", action="store_const", const="dataset", default="model", help="a data set of the hub"
    )
    parser.add_argument("--sha256", help="hash of the one file at a URL of any kind")
    args = parser.parse_args(argv)
    try:
        if args.sha256:
            what = f"{', '.join(fetch(args.source, args.sha256, args.to))}, verified,"
        else:
            what = f"{stage(args.source, args.to, revision=args.revision, kind=args.kind)} files"
    except (RunError, ValueError, OSError) as error:
        print(f"opd.pods.stage: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"opd.pods.stage: {args.to} holds {what} of {args.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
