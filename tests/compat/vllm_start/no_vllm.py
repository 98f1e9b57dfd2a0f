"""A package `vllm` for a process that has none: every module and every class that verl's rollout server imports is there, and empty."""

import importlib.abc
import importlib.machinery
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

VERSION = "0.24.0"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = VERSION  # type: ignore[attr-defined]
        module.__getattr__ = _made  # type: ignore[method-assign]


def _made(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def install() -> None:
    """For this process, from now on."""
    version = metadata.version
    metadata.version = lambda package: VERSION if package == "vllm" else version(package)
    sys.meta_path.insert(0, _Finder())
