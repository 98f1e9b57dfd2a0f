"""Python files of users that are imported by their path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`.

    Raises:
        ImportError: there is no such file; or whatever the file raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    spec.loader.exec_module(module)
    return module
