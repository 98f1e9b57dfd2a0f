"""Images from this repository's Dockerfiles by buildah, with no container runtime, daemon or registry."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.e2e.cluster import host
from tests.processes import ended, output

import gotools

ROOT = Path(__file__).resolve().parents[3]
# In the place of the Dockerfiles' own bases, which are in registries.
BASE_IMAGE, SUITE = "localhost/opd-base:bookworm", "bookworm"
# What images/cpu/Dockerfile needs of its base: Python with venv, and what `ps` and `kubectl cp` are asked for by people.
_BASE_PACKAGES = "python3,python3-venv,ca-certificates,procps"
_ALONE = ("nice", *host.OWN_NAMESPACES)
_CERTIFICATES = "/etc/ssl/certs"
_BUILD_TIMEOUT_S = 7200


class ImageError(RuntimeError):
    """An image that cannot be built; the text says why."""


class Buildah:
    """buildah (chroot isolation) in a storage of its own below the cache, gone with the block unless kept."""

    def __init__(self, storage: str, *, driver: str = "overlay", is_kept: bool = False) -> None:
        if shutil.which("buildah") is None:
            raise ImageError("buildah is not on PATH: apt-get install buildah")
        self._folder = gotools.cache_dir() / f"buildah-{storage}"
        self.root = self._folder / "root"
        self._driver, self._is_kept = driver, is_kept

    def __enter__(self) -> Buildah:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A build that was killed leaves containers, and a note of their mounts, which are gone.
        shutil.rmtree(self._folder / "run", ignore_errors=True)
        places = f'graphroot = "{self.root}"\nrunroot = "{self._folder}/run"'
        (self._folder / "storage.conf").write_text(f'[storage]\ndriver = "{self._driver}"\n{places}\n')
        self.run("rm", "--all")
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:  # kept, a change of our code alone builds its own layers alone
            shutil.rmtree(self._folder)

    def run(self, *arguments: str, timeout_s: float = 120, codes: tuple[int, ...] = (0,)) -> str:
        """buildah's output.

        Raises:
            ImageError: it ended with another code than these.
        """
        return self._run("buildah", *arguments, timeout_s=timeout_s, codes=codes)

    def _run(self, *command: str, timeout_s: float, codes: tuple[int, ...] = (0,)) -> str:
        places = {"BUILDAH_ISOLATION": "chroot", "CONTAINERS_STORAGE_CONF": str(self._folder / "storage.conf")}
        done = ended(*_ALONE, *command, env={**os.environ, **places}, cwd=ROOT, timeout=timeout_s)
        if done.returncode not in codes:
            what = f"`{' '.join(command[:2])}` ended with {done.returncode}"
            raise ImageError(f"{what}: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout

    def save(self, image: str, archive: Path, *, timeout_s: float = _BUILD_TIMEOUT_S) -> None:
        """Write an image as an OCI archive, whole or not at all; uncompressed, as it never leaves this machine."""
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        self.run("push", "--disable-compression", image, f"oci-archive:{partial}:{image}", timeout_s=timeout_s)
        partial.rename(archive)

    def drop_others(self, *refs: str) -> None:
        """Remove every image but these, and the layers that none of these is made of: six gigabytes an image."""
        known = self.run("images", "--filter", "dangling=false", "--format", "{{.Name}}:{{.Tag}}").split()
        for ref in sorted({*known} - {*refs}):
            self.run("rmi", ref)
        self.run("rmi", "--prune")

    def build(self, name: str, ref: str, say: Callable[[str], None], *options: str) -> None:
        """`images/build.sh NAME` as people call it, with its options, on a debootstrapped base; the image is called `ref`.

        This machine's certificates are mounted meanwhile: it may be behind a proxy that signs.

        Raises:
            ImageError: a program is missing or the build failed; the text has the end of its output.
        """
        if BASE_IMAGE not in self.run("images", "--format", "{{.Name}}:{{.Tag}}").split():
            say("base image: debootstrap of Debian and Python (minutes, once a storage)")
            self._make_base()
        say(f"{ref}: images/build.sh {name}")
        base = ["--build-arg", f"BASE={BASE_IMAGE}", "--pull=never"]
        rest = ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro", "--layers", "--tag", ref]
        self._run("images/build.sh", name, *options, *base, *rest, timeout_s=_BUILD_TIMEOUT_S)

    def _make_base(self) -> None:
        """A minimal Debian with Python as the image to build on."""
        if shutil.which("debootstrap") is None:
            raise ImageError("debootstrap is not on PATH: apt-get install debootstrap")
        root = gotools.cache_dir() / "debootstrap.partial"
        shutil.rmtree(root, ignore_errors=True)  # of one that was killed
        command = [*_ALONE, "debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", SUITE, str(root)]
        output(*command, fails=ImageError, timeout=900)
        container = self.run("from", "scratch").strip()
        self.run("copy", container, str(root), "/", timeout_s=300)
        self.run("config", "--cmd", '["bash"]', container)
        self.run("commit", "--rm", container, BASE_IMAGE, timeout_s=300)
        shutil.rmtree(root)
