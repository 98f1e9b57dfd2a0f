"""`python tools/gotools.py install|path`: Go programs and modules by name and version, cached outside the work tree.

It uses the standard library only, so that `make tools` needs no environment. `go install` builds a program of a version
named here. Other programs come from a folder with committed go.mod and go.sum (`lock`), which has all versions.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "OPD_TOOLS_DIR"
ROOT = Path(__file__).resolve().parents[1]
GO_LOCKS = "tests/e2e/go"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A Go program: package path of its main package, and its module's version or the folder that locks it."""

    package: str
    version: str = ""
    lock: str = ""  # below the repository's root
    is_any_version_fine: bool = False  # the program on PATH is used as it is
    stamps: str = ""  # package that holds gitVersion, gitMajor and gitMinor: servers report v0.0.0 without them

    def locked(self) -> tuple[str, str]:
        """Return module path and version that the lock's go.mod requires for this package."""
        text = (ROOT / self.lock / "go.mod").read_text()
        required: list[tuple[str, str]] = re.findall(r"^\s*(?:require )?(\S+\.\S+/\S+) (v\S+)", text, re.MULTILINE)
        return max((item for item in required if f"{self.package}/".startswith(f"{item[0]}/")), key=lambda i: len(i[0]))

    def ldflags(self) -> str:
        """Return linker flags: no symbol tables, and the version where the program reports one."""
        flags = ["-s", "-w"]
        if self.stamps:
            version = self.locked()[1]
            major, minor = version.removeprefix("v").split(".")[:2]
            values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            flags += [f"-X {self.stamps}.{key}={value}" for key, value in values.items()]
        return " ".join(flags)

    def key(self) -> str:
        """Return the version in the name of the cached binary's folder, with a hash of all that a locked program is made of."""
        if not self.lock:
            return self.version
        folder = ROOT / self.lock
        parts = [(folder / "go.mod").read_bytes(), (folder / "go.sum").read_bytes(), self.ldflags().encode()]
        return f"{self.locked()[1]}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:10]}"


def _kubernetes(name: str, *, is_any_version_fine: bool = False) -> Program:
    package, lock, stamps = f"k8s.io/kubernetes/cmd/{name}", f"{GO_LOCKS}/kubernetes", "k8s.io/component-base/version"
    return Program(package=package, lock=lock, stamps=stamps, is_any_version_fine=is_any_version_fine)


PROGRAMS = {
    "helm": Program(package="helm.sh/helm/v4/cmd/helm", version="v4.2.3", is_any_version_fine=True),
    "kubeconform": Program(
        package="github.com/yannh/kubeconform/cmd/kubeconform", version="v0.7.0", is_any_version_fine=True
    ),
    "syft": Program(package="github.com/anchore/syft/cmd/syft", version="v1.52.0", is_any_version_fine=True),
    "etcd": Program(package="go.etcd.io/etcd/server/v3", lock=f"{GO_LOCKS}/kubernetes"),
    "kubectl": _kubernetes("kubectl", is_any_version_fine=True),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubelet": _kubernetes("kubelet"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "ray-operator": Program(package="github.com/ray-project/kuberay/ray-operator", lock=f"{GO_LOCKS}/ray-operator"),
    "kwok": Program(package="sigs.k8s.io/kwok/cmd/kwok", lock=f"{GO_LOCKS}/kwok"),
    "coredns": Program(package="github.com/coredns/coredns", lock=f"{GO_LOCKS}/coredns"),
    "kueue": Program(package="sigs.k8s.io/kueue/cmd/kueue", lock=f"{GO_LOCKS}/kueue"),
    "netpol-analyzer": Program(
        package="github.com/np-guard/netpol-analyzer/cmd/netpolicy", lock=f"{GO_LOCKS}/netpol-analyzer"
    ),
    "registry": Program(package="github.com/google/go-containerregistry/cmd/registry", lock=f"{GO_LOCKS}/registry"),
    "versitygw": Program(package="github.com/versity/versitygw/cmd/versitygw", lock="tests/runs/s3"),
}
_CONTROL_PLANE = ("etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "ray-operator")
# Programs of a make target; on the command line a group's name means its programs.
GROUPS = {
    "charts": ("helm", "kubeconform", "netpol-analyzer"),
    "fast-tier": ("helm", *_CONTROL_PLANE, "kueue", "kwok", "registry"),
    "cluster": ("helm", *_CONTROL_PLANE, "kubelet", "kube-proxy", "coredns", "versitygw"),
}
# Sources of the objects that charts are checked against: the operators' own CRDs and the API of this Kubernetes.
MODULES = {
    "ray-operator": PROGRAMS["ray-operator"].locked(),
    "prometheus-operator": ("github.com/prometheus-operator/prometheus-operator", "v0.85.0"),
    "kubernetes": PROGRAMS["kube-apiserver"].locked(),
    "kueue": PROGRAMS["kueue"].locked(),
    "kwok": PROGRAMS["kwok"].locked(),
}


class ToolError(RuntimeError):
    """A program or module that cannot be had; the text names it and the fix."""


def cache_dir() -> Path:
    """Return the folder of built programs: $OPD_TOOLS_DIR, else below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "tools")


def installed(name: str) -> Path:
    """Return the path to which `install` builds a program; the folder's name holds its version."""
    return cache_dir() / f"{name}-{PROGRAMS[name].key()}" / name


def find(name: str) -> Path:
    """Return a program on PATH where any version is fine, else the installed program.

    Raises:
        ToolError: there is neither.
    """
    if (path := _found(name)) is None:
        text = f"{name} is neither on PATH nor at {installed(name)}: run `python tools/gotools.py install {name}`"
        raise ToolError(text)
    return path


def _found(name: str) -> Path | None:
    on_path = shutil.which(name) if PROGRAMS[name].is_any_version_fine else None
    path = Path(on_path) if on_path else installed(name)
    return path if path.is_file() else None


def install(name: str) -> Path:
    """Build a program where it is missing; return its path.

    Go compiles once what programs share. Compiling yields to other work (nice); `GOFLAGS=-p=1` bounds it to one core.

    Raises:
        ToolError: Go is absent or the build failed.
    """
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time builds a program
        if not _found(name):
            _build(name)
    return find(name)


def module(name: str) -> Path:
    """Return the folder of a module's sources, which the Go client downloads once.

    Raises:
        ToolError: Go is absent or the module cannot be had.
    """
    path, version = MODULES[name]
    locks = (program.lock for program in PROGRAMS.values() if program.lock and program.locked() == (path, version))
    asked, folder = f"{path}@{version}", None
    # A lock's go.sum verifies; elsewhere Go asks the checksum database, even for what a build left here.
    if lock := next(locks, ""):
        asked, folder = path, ROOT / lock
    return Path(json.loads(_go(["mod", "download", "-json", asked], what=name, folder=folder))["Dir"])


def _build(name: str) -> None:
    program, target = PROGRAMS[name], installed(name)
    flags = ["-trimpath", f"-ldflags={program.ldflags()}"]
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        if program.lock:
            command = ["build", "-mod=readonly", *flags, "-o", f"{folder}/{name}", program.package]
            _go(command, what=name, folder=ROOT / program.lock, CGO_ENABLED="0")
        else:
            command = ["install", *flags, f"{program.package}@{program.version}"]
            _go(command, what=name, GOBIN=folder, CGO_ENABLED="0")
        target.parent.mkdir(exist_ok=True)
        (Path(folder) / name).replace(target)


def _go(arguments: list[str], *, what: str, folder: Path | None = None, **environment: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise ToolError(f"Go is needed for {what} and is not on PATH: install Go 1.26 or newer")
    with tempfile.TemporaryDirectory() as empty:  # outside any module, so that no go.mod is read
        done = subprocess.run(["nice", go, *arguments], cwd=folder or empty, env={**os.environ, **environment},
                              capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        text = done.stderr[-2000:] or done.stdout[-2000:]
        raise ToolError(f"{what} cannot be had: `go {arguments[0]}` ended with {done.returncode}:\n{text}")
    return done.stdout


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    wanted = commands.add_parser("install", help=f"build what is missing; groups: {', '.join(GROUPS)}")
    wanted.add_argument("names", nargs="+", choices=[*GROUPS, *PROGRAMS], metavar="PROGRAM|GROUP")
    commands.add_parser("path", help="print where a program is").add_argument("name", choices=PROGRAMS)
    args = parser.parse_args()
    try:
        if args.command == "install":
            for name in dict.fromkeys(name for given in args.names for name in GROUPS.get(given, (given,))):
                print(f"{name}: {install(name)}")
        else:
            print(find(args.name))
    except ToolError as error:
        print(f"gotools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
