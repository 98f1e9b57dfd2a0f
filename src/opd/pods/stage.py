"""The Job of manifests/stage.yaml: `python -m opd.pods.stage SOURCE --to FOLDER` fills a claim from a store or the hub.

A second start fetches only missing files; the record `.opd-staged.json` appears last. With `--sha256 HASH` the source is
one file, such as a tool database in a tar archive, which is verified and unpacked.
"""

import argparse
import hashlib
import re
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec

from opd.errors import RunError
from opd.inputs.fetch import FetchError, mirror
from opd.inputs.models import needed_files
from opd.store.access import is_store_url, storage_options
from opd.store.local import LocalStore

RECORD_FILE = ".opd-staged.json"
CHUNK_BYTES = 8 * 2**20
HUB_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")


def stage(source: str, folder: Path, *, revision: str = "", kind: str = "model") -> dict[str, str | int]:
    """Fill a folder from a store URL (folder or single object) or a hub repository; return its record.

    Raises:
        RunError: the store or an object of it cannot be used.
        ValueError: `source` is neither.
        OSError: the hub is unreachable or has no such repository, or the disk is full.
    """
    store = LocalStore(folder)
    store.delete(RECORD_FILE)
    done: dict[str, str | int] = {"source": source}
    if is_store_url(source):
        done["num_files"] = mirror(source, folder)
    elif HUB_ID.match(source):
        done |= _from_hub(source, folder, revision=revision, kind=kind)
    else:
        raise ValueError(f"{source!r} is neither a store URL (s3://...) nor a hub id (owner/name)")
    store.put_json(RECORD_FILE, done)
    return done


def _from_hub(repository: str, folder: Path, *, revision: str, kind: str) -> dict[str, str | int]:
    """Download a repository at one commit; the hub's client verifies and resumes file by file."""
    from huggingface_hub import HfApi, snapshot_download

    info: Any = HfApi().repo_info(repository, repo_type=kind, revision=revision or None)
    commit, names = info.sha, [one.rfilename for one in info.siblings or ()]
    if commit is None:
        raise OSError(f"the hub names no commit for {repository} at {revision or 'its main branch'}")
    print(f"opd.pods.stage: {kind} {repository} at commit {commit}", flush=True)
    only = needed_files(names) if kind == "model" else None
    snapshot_download(repository, repo_type=kind, revision=commit, local_dir=folder, allow_patterns=only)
    num_files = sum(path.is_file() for path in folder.rglob("*") if ".cache" not in path.relative_to(folder).parts)
    return {"revision": commit, "num_files": num_files}


def fetch(url: str, sha256: str, folder: Path) -> list[str]:
    """Download any fsspec URL, verify, and unpack a tar archive; nothing appears in `folder` unless the hash is right.

    Returns:
        Names of the new entries in `folder`.

    Raises:
        FetchError: the hash differs, or the archive has members that lead out of it or are devices.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        part = Path(scratch) / url.rstrip("/").rpartition("/")[2]
        found = hashlib.sha256()
        with fsspec.open(url, "rb", **storage_options(url)) as source, open(part, "wb") as target:
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
    """Unpack what tarfile's filter for data accepts; our images have it, Python before 3.11.4 has not."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    except tarfile.FilterError as error:
        raise FetchError(f"{archive.name} holds an unsafe member: {error}") from error
    return list(target.iterdir())


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
            what = f"{stage(args.source, args.to, revision=args.revision, kind=args.kind)['num_files']} files"
    except (RunError, ValueError, OSError) as error:
        print(f"opd.pods.stage: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"opd.pods.stage: {args.to} holds {what} of {args.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
