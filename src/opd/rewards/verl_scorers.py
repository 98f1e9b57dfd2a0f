"""Loads verl's own scorer files alone: importing `verl` itself costs seconds and torch, the scorers need only `re`."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from opd.isolation.modules import load_file


@lru_cache(maxsize=8)
def load_verl_scorer(name: str) -> ModuleType:
    """verl's `utils/reward_score/<name>.py` as a module, without executing `verl/__init__.py`.

    Raises:
        ImportError: verl is not installed, or has no such scorer.
    """
    package = importlib.util.find_spec("verl")  # a top-level look-up finds the package and runs nothing of it
    if package is None or package.origin is None:
        raise ImportError(
            f"reward function {name!r} is built on verl's scorer and verl is not installed: install the `train` extra"
        )
    path = Path(package.origin).parent / "utils" / "reward_score" / f"{name}.py"
    if not path.is_file():
        raise ImportError(
            f"verl at {path.parents[2]} has no scorer {path.name}: install verl 0.9.1 (the `train` extra)"
        )
    return load_file(path, f"_opd_verl_scorer_{name}")
