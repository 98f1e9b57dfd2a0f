"""`python tools/gotools.py install|path|module`: Go programs and modules by name and version, cached outside the work tree.

Standard library only, so that `make tools` needs no environment. A program found on PATH is used as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "OPD_TOOLS_DIR"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A Go program: package path of its main package and module version."""

    package: str
    version: str


PROGRAMS = {
    "helm": Program(package="helm.sh/helm/v4/cmd/helm", version="v4.2.3"),
    "kubeconform": Program(package="github.com/yannh/kubeconform/cmd/kubeconform", version="v0.7.0"),
}
# What the charts are checked against: the operators' own CRDs and the API of this Kubernetes.
MODULES = {
    "ray-operator": ("github.com/ray-project/kuberay/ray-operator", "v1.6.1"),
    "prometheus-operator": ("github.com/prometheus-operator/prometheus-operator", "v0.85.0"),
    "kubernetes": ("k8s.io/kubernetes", "v1.36.2"),
}


class ToolError(RuntimeError):
    """A program or module that cannot be had; the text says which one and what to do."""


def cache_dir() -> Path:
    """The folder of built programs: $OPD_TOOLS_DIR, else below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "tools")


def installed(name: str) -> Path:
    """Where `install` puts a program; the folder's name holds its version."""
    return cache_dir() / f"{name}-{PROGRAMS[name].version}" / name


def find(name: str) -> Path:
    """A program on PATH, else the installed one.

    Raises:
        ToolError: there is neither.
    """
    on_path = shutil.which(name)
    path = Path(on_path) if on_path else installed(name)
    if not path.is_file():
        raise ToolError(f"{name} is neither on PATH nor at {path}: run `make tools`")
    return path


def install(name: str) -> Path:
    """Build a program unless it can be found already; one process compiles at a time, so that others can work.

    Raises:
        ToolError: Go is absent or the build failed.
    """
    try:
        return find(name)
    except ToolError:
        pass
    program, target = PROGRAMS[name], installed(name)
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as folder:
        _go(["install", f"{program.package}@{program.version}"], GOBIN=folder, GOFLAGS="-p=1", CGO_ENABLED="0")
        target.parent.mkdir(exist_ok=True)
        (Path(folder) / name).replace(target)
    return target


def module(name: str) -> Path:
    """The unpacked sources of a module, downloaded once by the Go client.

    Raises:
        ToolError: Go is absent or the module cannot be had.
    """
    path, version = MODULES[name]
    return Path(json.loads(_go(["mod", "download", "-json", f"{path}@{version}"]))["Dir"])


def _go(arguments: list[str], **environment: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise ToolError("Go is needed to build the chart tools and is not on PATH: install it, or put helm on PATH")
    with tempfile.TemporaryDirectory() as folder:  # outside any module, so that no go.mod is read
        done = subprocess.run(
            [go, *arguments], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise ToolError(f"`go {' '.join(arguments)}` failed:\n{done.stderr[-2000:] or done.stdout[-2000:]}")
    return done.stdout


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="build what is missing").add_argument("names", nargs="*", metavar="PROGRAM")
    commands.add_parser("path", help="print where a program is").add_argument("name", choices=PROGRAMS)
    commands.add_parser("module", help="print where a module's sources are").add_argument("name", choices=MODULES)
    args = parser.parse_args()
    try:
        if args.command == "install":
            for name in args.names or PROGRAMS:
                print(f"{name}: {install(name)}")
        else:
            print(find(args.name) if args.command == "path" else module(args.name))
    except ToolError as error:
        print(f"gotools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
