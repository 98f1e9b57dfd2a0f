"""Images for the node as OCI archives, built by buildah in a storage of the cache's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import host, packages
from tests.e2e.cluster.node import PAUSE_IMAGE

import gotools

ROOT = Path(__file__).resolve().parents[3]
BASE_IMAGE, SUITE = "localhost/opd-base:bookworm", "bookworm"
# What images/cpu/Dockerfile needs of its base: Python with venv, and what `ps` and `kubectl cp` are asked for by people.
_BASE_PACKAGES = "python3,python3-venv,ca-certificates,procps"
# What goes into images/cpu: a change of any of these is another image.
_CONTEXT = (
    "images/cpu",
    "images/split_requirements.py",
    "pyproject.toml",
    "uv.lock",
    "README.md",
    "src",
    "tools/opdctl",
)
_ALONE = ("nice", *host.OWN_NAMESPACES)
_CERTIFICATES = "/etc/ssl/certs"
_BUILD_TIMEOUT_S = 3600


class ImageError(RuntimeError):
    """An image that cannot be built; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image's reference on the node, and the archive that it is loaded from."""

    ref: str
    archive: Path


def cpu_image() -> Image:
    """images/cpu of this work tree as the chart would name it (`cluster.image.ref`, with `local: true`)."""
    key = _context_key()
    return Image(ref=f"localhost/opd-cpu:{key}", archive=gotools.cache_dir() / f"opd-cpu-{key}.tar")


def build_cpu_image(say: Callable[[str], None]) -> Image:
    """Build images/cpu/Dockerfile on a debootstrapped base unless its archive is there (ten minutes and more, 6 GB).

    Raises:
        ImageError: a program is missing or the build failed; the text has the end of its output.
    """
    image = cpu_image()
    if not image.archive.is_file():
        with Buildah(driver="overlay", is_kept=True) as buildah:
            if BASE_IMAGE not in buildah.run("images", "--format", "{{.Name}}:{{.Tag}}").split():
                say("base image: debootstrap of Debian and Python (minutes, once)")
                _make_base(buildah)
            say(f"{image.ref}: images/cpu/Dockerfile (ten minutes at first, then the layers that changed)")
            _build(buildah, image)
            say(f"{image.ref}: archive")
            buildah.save(image.ref, image.archive)
        for old in image.archive.parent.glob("opd-cpu-*.tar"):
            if old != image.archive:
                old.unlink()  # six gigabytes each
    return image


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
    """buildah without a container runtime (chroot isolation) in a storage of its own, gone with the block unless kept."""

    def __init__(self, *, driver: str = "vfs", is_kept: bool = False) -> None:
        if shutil.which("buildah") is None:
            raise ImageError("buildah is not on PATH: apt-get install buildah")
        self._folder = gotools.cache_dir() / f"buildah-{driver}"
        self._driver, self._is_kept = driver, is_kept

    def __enter__(self) -> Buildah:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A build that was killed leaves containers, and a note of their mounts, which are gone.
        shutil.rmtree(self._folder / "run", ignore_errors=True)
        self.run("rm", "--all")
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:  # kept, a change of our code alone builds its own layers alone
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
        command = [*_ALONE, "buildah", *storage, *arguments]
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise ImageError(f"`buildah {arguments[0]}` ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def save(self, image: str, archive: Path, *, timeout_s: float = 600) -> None:
        """Write an image as an OCI archive, whole or not at all; uncompressed, as it never leaves this machine."""
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        self.run("push", "--disable-compression", image, f"oci-archive:{partial}:{image}", timeout_s=timeout_s)
        partial.rename(archive)


def _context_key() -> str:
    """Twelve hex digits of everything that the Dockerfile copies, as it lies in the work tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *_CONTEXT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        path = ROOT / name
        if path.is_file():  # one that is deleted but not yet committed is still listed
            digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _make_base(buildah: Buildah) -> None:
    """A minimal Debian with Python as the image to build on; no registry is asked."""
    if shutil.which("debootstrap") is None:
        raise ImageError("debootstrap is not on PATH: apt-get install debootstrap")
    root = gotools.cache_dir() / "debootstrap.partial"
    shutil.rmtree(root, ignore_errors=True)  # of one that was killed
    command = [*_ALONE, "debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", SUITE, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise ImageError(f"debootstrap ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-1000:]}")
    container = buildah.run("from", "scratch").strip()
    buildah.run("copy", container, str(root), "/", timeout_s=300)
    buildah.run("config", "--cmd", '["bash"]', container)
    buildah.run("commit", "--rm", container, BASE_IMAGE, timeout_s=300)
    shutil.rmtree(root)


def _build(buildah: Buildah, image: Image) -> None:
    """The Dockerfile as it is; a proxy's certificates are this machine's, mounted for the build alone."""
    dockerfile = ROOT / "images" / "cpu" / "Dockerfile"
    mounts = [
        "--volume",
        f"{_CERTIFICATES}:{_CERTIFICATES}:ro",
        "--env",
        f"SSL_CERT_FILE={_CERTIFICATES}/ca-certificates.crt",
    ]
    files = ["--file", str(dockerfile), "--ignorefile", f"{dockerfile}.dockerignore"]
    arguments = ["--build-arg", f"BASE={BASE_IMAGE}", "--pull=never", "--layers", "--tag", image.ref]
    buildah.run("build", *mounts, *files, *arguments, ".", cwd=ROOT, timeout_s=_BUILD_TIMEOUT_S)
