"""Images for the node as OCI archives, built by buildah in a storage of the cache's own."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import packages
from tests.e2e.cluster.buildah import BASE_IMAGE, ROOT, Buildah
from tests.e2e.cluster.node import PAUSE_IMAGE
from tests.processes import output

import gotools

# What goes into images/cpu: a change of any of these is another image.
_CONTEXT = (
    "images/cpu",
    "images/split_requirements.py",
    "pyproject.toml",
    "uv.lock",
    "README.md",
    "LICENSE",
    "src",
    "tools/opdctl",
    "charts",
)


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
        with Buildah("overlay", is_kept=True) as buildah:
            buildah.build("cpu", image.ref, say)
            say(f"{image.ref}: archive")
            buildah.save(image.ref, image.archive)
            buildah.drop_others(image.ref, BASE_IMAGE)
        for old in image.archive.parent.glob("opd-cpu-*.tar"):
            if old != image.archive:
                old.unlink()  # six gigabytes each
    return image


def pause_archive() -> Path:
    """The image that holds a pod's namespaces: one static program from a Debian package."""
    debian = packages.unpacked()
    archive = gotools.cache_dir() / f"pause-{debian.name.removeprefix('debian-')}.tar"
    if not archive.is_file():
        with Buildah("vfs", driver="vfs") as buildah:
            container = buildah.run("from", "scratch").strip()
            buildah.run("copy", container, str(debian / "usr/bin/catatonit"), "/catatonit")
            buildah.run("config", "--entrypoint", '["/catatonit", "-P"]', container)
            buildah.run("commit", container, PAUSE_IMAGE)
            buildah.save(PAUSE_IMAGE, archive)
    return archive


def _context_key() -> str:
    """Return twelve hex digits of all that the Dockerfile copies, as it is in the work tree."""
    listed = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *_CONTEXT, cwd=ROOT)
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        if path.is_file():  # one that is deleted but not yet committed is still listed
            digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
