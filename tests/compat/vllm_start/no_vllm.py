"""A package `vllm` for a process that has none: every module and every class that verl's rollout server imports is there, and empty."""

import functools
import importlib.abc
import importlib.machinery
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

VERSION = "0.24.0"
ASKED: list[str] = []
"""Modules and names in them, as `vllm:LLM`, in the order in which they were asked for."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(__version__=VERSION, __getattr__=functools.partial(_made, module.__name__))


def _made(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    ASKED.append(f"{module}:{name}")
    return type(name, (), {})


def install() -> None:
    """For this process, from now on."""
    version = metadata.version
    metadata.version = lambda package: VERSION if package == "vllm" else version(package)
    sys.meta_path.insert(0, _Finder())
