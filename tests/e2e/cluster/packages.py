"""Programs from Debian packages, downloaded by apt and unpacked into the cache: nothing is installed on the machine."""

import re
import shutil
import tempfile
from pathlib import Path

from tests.processes import output

import gotools

# Files in the unpacked folder, by package; catatonit is the process that holds a pod's namespaces.
UNPACKED = {
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"),
    "runc": ("usr/sbin/runc",),
    "containernetworking-plugins": ("usr/lib/cni/bridge", "usr/lib/cni/host-local", "usr/lib/cni/portmap"),
    "catatonit": ("usr/bin/catatonit",),
}
# Programs that must be on PATH, by the package that brings them.
REQUIRED = {
    "apt": "apt-get",
    "iproute2": "ip",
    "iptables": "iptables-legacy",
    "util-linux": "unshare",
    "openssl": "openssl",
    "mount": "mount",
}


class PackageError(RuntimeError):
    """A package that cannot be had; the text names it."""


def unpacked() -> Path:
    """The folder with the unpacked packages (usr/bin, usr/sbin, usr/lib/cni), made once.

    Raises:
        PackageError: apt is absent or does not have one of them.
    """
    versions = "-".join(_candidate(package) for package in UNPACKED)
    folder = gotools.cache_dir() / f"debian-{re.sub(r'[^A-Za-z0-9.]+', '_', versions)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            scratch = Path(name)
            for package in UNPACKED:
                _unpack(package, scratch)
            (scratch / "root").rename(folder)
    return folder


def missing_programs() -> list[str]:
    """One line for each required program that is not on PATH."""
    return [
        f"{program} is not on PATH: apt-get install {package}"
        for package, program in REQUIRED.items()
        if shutil.which(program, path=search_path()) is None
    ]


def search_path() -> str:
    """PATH of the cluster's parts; the folders for administrators may be missing in the caller's."""
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _candidate(package: str) -> str:
    found = re.search(r"Candidate: (\S+)", output("apt-cache", "policy", package, fails=PackageError))
    if found is None or found[1] == "(none)":
        raise PackageError(f"the Debian package {package} cannot be had: apt-cache policy knows no candidate")
    return found[1]


def _unpack(package: str, scratch: Path) -> None:
    output("apt-get", "download", package, cwd=scratch, fails=PackageError)
    [archive] = scratch.glob(f"{package}_*.deb")
    output("dpkg-deb", "--extract", archive, scratch / "root", fails=PackageError)
    for path in UNPACKED[package]:
        if not (scratch / "root" / path).is_file():
            raise PackageError(f"the Debian package {package} has no /{path}: another release than Debian 12?")
