"""`python tools/gotools.py install|path|module`: Go programs and modules by name and version, cached outside the work tree.

Standard library only, so that `make tools` needs no environment. Programs are built either by `go install` at a version named
here, or from a folder with committed go.mod and go.sum (`lock`), which then says the version of everything in them.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    is_any_version_fine: bool = False  # one found on PATH is used as it is
    stamps: str = ""  # package that holds gitVersion, gitMajor and gitMinor: servers report v0.0.0 without them

    def locked(self) -> tuple[str, str]:
        """(module path, version) that the lock's go.mod requires for this package."""
        text = (ROOT / self.lock / "go.mod").read_text()
        required: list[tuple[str, str]] = re.findall(r"^\s*(?:require )?(\S+\.\S+/\S+) (v\S+)", text, re.MULTILINE)
        return max((item for item in required if f"{self.package}/".startswith(f"{item[0]}/")), key=lambda i: len(i[0]))

    def ldflags(self) -> str:
        """Linker flags: no symbol tables, and the version where the program reports one."""
        flags = ["-s", "-w"]
        if self.stamps:
            version = self.locked()[1]
            major, minor = version.removeprefix("v").split(".")[:2]
            values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            flags += [f"-X {self.stamps}.{key}={value}" for key, value in values.items()]
        return " ".join(flags)

    def key(self) -> str:
        """What the cached binary's folder is named by, after the program: version, and all that went into a locked one."""
        if not self.lock:
            return self.version
        folder = ROOT / self.lock
        parts = [(folder / "go.mod").read_bytes(), (folder / "go.sum").read_bytes(), self.ldflags().encode()]
        return f"{self.locked()[1]}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:10]}"


def _kubernetes(name: str, *, is_any_version_fine: bool = False) -> Program:
    return Program(
        package=f"k8s.io/kubernetes/cmd/{name}",
        lock=f"{GO_LOCKS}/kubernetes",
        stamps="k8s.io/component-base/version",
        is_any_version_fine=is_any_version_fine,
    )


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
# What a make target needs; a group's name stands for its programs on the command line.
GROUPS = {
    "charts": ("helm", "kubeconform", "netpol-analyzer"),
    "fast-tier": ("helm", *_CONTROL_PLANE, "kueue", "kwok", "registry"),
    "cluster": ("helm", *_CONTROL_PLANE, "kubelet", "kube-proxy", "coredns", "versitygw"),
    "sbom": ("syft",),
}
# What the charts are checked against: the operators' own CRDs and the API of this Kubernetes.
MODULES = {
    "ray-operator": PROGRAMS["ray-operator"].locked(),
    "prometheus-operator": ("github.com/prometheus-operator/prometheus-operator", "v0.85.0"),
    "kubernetes": PROGRAMS["kube-apiserver"].locked(),
    "kueue": PROGRAMS["kueue"].locked(),
    "kwok": PROGRAMS["kwok"].locked(),
}


class ToolError(RuntimeError):
    """A program or module that cannot be had; the text says which one and what to do."""


def cache_dir() -> Path:
    """The folder of built programs: $OPD_TOOLS_DIR, else below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "tools")


def installed(name: str) -> Path:
    """Where `install` puts a program; the folder's name holds its version."""
    return cache_dir() / f"{name}-{PROGRAMS[name].key()}" / name


def find(name: str) -> Path:
    """A program on PATH where any version is fine, else the installed one.

    Raises:
        ToolError: there is neither.
    """
    on_path = shutil.which(name) if PROGRAMS[name].is_any_version_fine else None
    path = Path(on_path) if on_path else installed(name)
    if not path.is_file():
        group = next(group for group, names in GROUPS.items() if name in names)
        raise ToolError(f"{name} is neither on PATH nor at {path}: run `python tools/gotools.py install {group}`")
    return path


def missing(names: Iterable[str]) -> list[str]:
    """The programs among them that `find` does not find."""
    return [
        name
        for name in names
        if not (PROGRAMS[name].is_any_version_fine and shutil.which(name)) and not installed(name).is_file()
    ]


def install(name: str) -> Path:
    """`install_all` of one program; returns where it is."""
    return install_all([name])[name]


def install_all(names: Iterable[str]) -> dict[str, Path]:
    """Build what cannot be found already, one lock after the other; returns where each program is.

    Programs of one lock are built by one command, so that what they share is compiled once. Compiling yields to other work
    (nice); `GOFLAGS=-p=1` bounds it to one core.

    Raises:
        ToolError: Go is absent or a build failed; the text names the programs.
    """
    names = list(names)
    groups: dict[str, list[str]] = {}
    for name in missing(names):
        groups.setdefault(PROGRAMS[name].lock or name, []).append(name)
    for key, group in groups.items():
        with one_builder(Path(key).name):
            wanted = missing(group)  # another process may have built them while this one waited
            if wanted:
                _build(wanted)
    return {name: find(name) for name in names}


def module(name: str) -> Path:
    """The unpacked sources of a module, downloaded once by the Go client.

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


def _build(names: list[str]) -> None:
    programs = [PROGRAMS[name] for name in names]
    what = ", ".join(names)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        if programs[0].lock:
            flags = ["-mod=readonly", "-trimpath", f"-ldflags={max((p.ldflags() for p in programs), key=len)}"]
            command = ["build", *flags, "-o", f"{folder}/", *(program.package for program in programs)]
            _go(command, what=what, folder=ROOT / programs[0].lock, CGO_ENABLED="0")
        else:
            package = f"{programs[0].package}@{programs[0].version}"
            _go(
                ["install", "-trimpath", f"-ldflags={programs[0].ldflags()}", package],
                what=what,
                GOBIN=folder,
                CGO_ENABLED="0",
            )
        for name, program in zip(names, programs, strict=True):
            target = installed(name)
            target.parent.mkdir(exist_ok=True)
            (Path(folder) / _executable(program.package)).replace(target)


def _executable(package: str) -> str:
    """What `go build` calls a package's program: the last element of its path that is no major version."""
    *_, before, last = package.split("/")
    return before if re.fullmatch(r"v\d+", last) else last


@contextmanager
def one_builder(name: str) -> Iterator[None]:
    """Holds the others off while one process makes what goes by this name in the cache."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _go(arguments: list[str], *, what: str, folder: Path | None = None, **environment: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise ToolError(f"Go is needed for {what} and is not on PATH: install Go 1.26 or newer")
    with tempfile.TemporaryDirectory() as empty:  # outside any module, so that no go.mod is read
        done = subprocess.run(
            ["nice", go, *arguments],
            cwd=folder or empty,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        text = done.stderr[-2000:] or done.stdout[-2000:]
        raise ToolError(f"{what} cannot be had: `go {arguments[0]}` ended with {done.returncode}:\n{text}")
    return done.stdout


def _program_or_group(name: str) -> str:
    """`choices` would refuse an empty list."""
    if name not in {*GROUPS, *PROGRAMS}:
        raise argparse.ArgumentTypeError(
            f"{name!r} is neither a group ({', '.join(GROUPS)}) nor one of {', '.join(PROGRAMS)}"
        )
    return name


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    wanted = commands.add_parser("install", help=f"build what is missing; groups: {', '.join(GROUPS)}")
    wanted.add_argument("names", nargs="*", default=["charts"], type=_program_or_group, metavar="PROGRAM|GROUP")
    commands.add_parser("path", help="print where a program is").add_argument("name", choices=PROGRAMS)
    commands.add_parser("module", help="print where a module's sources are").add_argument("name", choices=MODULES)
    args = parser.parse_args()
    try:
        if args.command == "install":
            names = dict.fromkeys(name for given in args.names for name in GROUPS.get(given, (given,)))
            for name, path in install_all(names).items():
                print(f"{name}: {path}")
        else:
            print(find(args.name) if args.command == "path" else module(args.name))
    except ToolError as error:
        print(f"gotools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
