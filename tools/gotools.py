"""`python tools/gotools.py install|path`: Go programs and modules by name and version, built into a cache outside the work tree.

It uses the standard library only, so that `make tools` needs no environment.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE_VARIABLE = "OPD_TOOLS_DIR"
ROOT = Path(__file__).resolve().parents[1]
_GO = "tests/e2e/go"
_KUBERNETES = ("kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
# The package of each program, and its version or the folder whose go.mod and go.sum lock it.
PROGRAMS = {
    "helm": ("helm.sh/helm/v4/cmd/helm", "v4.2.3"),
    "syft": ("github.com/anchore/syft/cmd/syft", "v1.52.0"),
    "etcd": ("go.etcd.io/etcd/server/v3", f"{_GO}/kubernetes"),
    **{name: (f"k8s.io/kubernetes/cmd/{name}", f"{_GO}/kubernetes") for name in _KUBERNETES},
    "ray-operator": ("github.com/ray-project/kuberay/ray-operator", f"{_GO}/ray-operator"),
    "kwok": ("sigs.k8s.io/kwok/cmd/kwok", f"{_GO}/kwok"),
    "coredns": ("github.com/coredns/coredns", f"{_GO}/coredns"),
    "kueue": ("sigs.k8s.io/kueue/cmd/kueue", f"{_GO}/kueue"),
    "netpol-analyzer": ("github.com/np-guard/netpol-analyzer/cmd/netpolicy", f"{_GO}/netpol-analyzer"),
    "registry": ("github.com/google/go-containerregistry/cmd/registry", f"{_GO}/registry"),
    "versitygw": ("github.com/versity/versitygw/cmd/versitygw", "tests/runs/s3"),
}
ANY_VERSION = ("helm", "syft", "kubectl")  # the program on PATH is used as it is
_CONTROL_PLANE = ("etcd", *_KUBERNETES[:4], "ray-operator")
# Programs of a make target; on the command line a group's name means its programs.
GROUPS = {
    "charts": ("helm", "netpol-analyzer"),
    "fast-tier": ("helm", *_CONTROL_PLANE, "kueue", "kwok", "registry"),
    "cluster": ("helm", *_CONTROL_PLANE, "kubelet", "kube-proxy", "coredns", "versitygw"),
}


class ToolError(RuntimeError):
    """A program or module that cannot be had; the text names it and the fix."""


def cache_dir() -> Path:
    """Return the folder of built programs: $OPD_TOOLS_DIR, else below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "tools")


def _locked(package: str, folder: str) -> tuple[str, str]:
    """Return module path and version that a folder's go.mod requires for a package."""
    text = (ROOT / folder / "go.mod").read_text()
    required: list[tuple[str, str]] = re.findall(r"^\s*(?:require )?(\S+\.\S+/\S+) (v\S+)", text, re.MULTILINE)
    return max((item for item in required if f"{package}/".startswith(f"{item[0]}/")), key=lambda item: len(item[0]))


def _installed(name: str) -> tuple[Path, str]:
    """Return the path to which `install` builds a program, in a folder of its version, and Go's linker flags for it."""
    (package, version), flags = PROGRAMS[name], "-s -w"
    if (folder := ROOT / version).is_dir():
        number = _locked(package, version)[1]
        if name in _KUBERNETES:  # they report v0.0.0 without these
            major, minor = number.removeprefix("v").split(".")[:2]
            values = {"gitVersion": number, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            flags += "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in values.items())
        parts = [(folder / "go.mod").read_bytes(), (folder / "go.sum").read_bytes(), flags.encode()]
        version = f"{number}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:10]}"
    return cache_dir() / f"{name}-{version}" / name, flags


def find(name: str) -> Path:
    """Return a program on PATH where any version is fine, else the installed program; raise ToolError without both."""
    on_path = shutil.which(name) if name in ANY_VERSION else None
    path = Path(on_path) if on_path else _installed(name)[0]
    if not path.is_file():
        raise ToolError(f"{name} is neither on PATH nor at {path}: run `python tools/gotools.py install {name}`")
    return path


def install(name: str) -> Path:
    """Build a program where it is missing; return its path. Raise ToolError without Go, or if the build failed.

    Compiling yields to other work (nice); `GOFLAGS=-p=1` bounds it to one core.
    """
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time builds a program
        with contextlib.suppress(ToolError):
            return find(name)
        (package, version), (target, flags) = PROGRAMS[name], _installed(name)
        with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
            words = ["-trimpath", f"-ldflags={flags}"]
            if (lock_folder := ROOT / version).is_dir():
                _go("build", "-mod=readonly", *words, "-o", f"{folder}/{name}", package, folder=lock_folder)
            else:
                _go("install", *words, f"{package}@{version}", folder=Path(folder), GOBIN=folder)
            target.parent.mkdir(exist_ok=True)
            (Path(folder) / name).replace(target)
    return target


def module(name: str) -> Path:
    """Return the folder of a locked program's sources, which Go downloads once and verifies; raise ToolError as `install`."""
    package, folder = PROGRAMS[name]
    return Path(json.loads(_go("mod", "download", "-json", _locked(package, folder)[0], folder=ROOT / folder))["Dir"])


def _go(*arguments: str, folder: Path, **environment: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise ToolError("Go is not on PATH: install Go 1.26 or newer")
    done = subprocess.run(["nice", go, *arguments], cwd=folder, env={**os.environ, "CGO_ENABLED": "0", **environment},
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise ToolError(
            f"`go {' '.join(arguments)}` ended with {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}"
        )
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
