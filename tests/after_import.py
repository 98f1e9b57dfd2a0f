"""Change a module of the program under test right after it is imported, in a process that a test does not start itself."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: Mapping[str, Callable[[Any], None]]) -> None:
        self._changes = dict(changes)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name not in self._changes:
            return None
        change = self._changes.pop(name)
        if not self._changes:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def change_after_import(changes: Mapping[str, Callable[[Any], None]]) -> None:
    """Call `changes[name](module)` once module `name` has been executed, which must not have happened yet."""
    sys.meta_path.insert(0, _Finder(changes))
