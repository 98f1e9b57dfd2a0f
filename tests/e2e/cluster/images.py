"""Images for the node as OCI archives, built by buildah in a storage of the cache's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.e2e.cluster import packages
from tests.e2e.cluster.node import PAUSE_IMAGE

import gotools


class ImageError(RuntimeError):
    """An image that cannot be built; the text says why."""


def pause_archive() -> Path:
    """The image that holds a pod's namespaces: one static program from a Debian package."""
    debian = packages.unpacked()
    archive = gotools.cache_dir() / f"pause-{debian.name.removeprefix('debian-')}.tar"
    if not archive.is_file():
        with Buildah() as buildah:
            container = buildah.run("from", "scratch").strip()
            buildah.run("copy", container, str(debian / "usr/bin/catatonit"), "/catatonit")
            buildah.run("config", "--entrypoint", '["/catatonit", "-P"]', container)
            buildah.run("commit", container, PAUSE_IMAGE)
            buildah.save(PAUSE_IMAGE, archive)
    return archive


class Buildah:
    """buildah without a container runtime (chroot isolation); leave the block and its storage is gone."""

    def __init__(self, *, driver: str = "vfs") -> None:
        if shutil.which("buildah") is None:
            raise ImageError("buildah is not on PATH: apt-get install buildah")
        self._folder = gotools.cache_dir() / "buildah"
        self._driver = driver

    def __enter__(self) -> Buildah:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)

    def run(self, *arguments: str, cwd: Path | None = None, timeout_s: float = 120) -> str:
        """buildah's output.

        Raises:
            ImageError: it ended with another code than 0.
        """
        storage = [
            "--root",
            f"{self._folder}/root",
            "--runroot",
            f"{self._folder}/run",
            "--storage-driver",
            self._driver,
        ]
        command = ["nice", "buildah", *storage, *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise ImageError(f"`buildah {arguments[0]}` ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def save(self, image: str, archive: Path, *, timeout_s: float = 600) -> None:
        """Write an image as an OCI archive, whole or not at all."""
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        self.run("push", image, f"oci-archive:{partial}:{image}", timeout_s=timeout_s)
        partial.rename(archive)
