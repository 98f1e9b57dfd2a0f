"""opdctl: from an experiment file to a run and back to its results; it imports neither torch, verl nor ray.

From Python: `opdctl.load`, `opdctl.load_all`, `opdctl.compare`, `opdctl.band` (README.md has an example).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdctl.runs.loaded import LoadedRun, band, compare, load, load_all

__all__ = ["LoadedRun", "band", "compare", "load", "load_all"]


def __getattr__(name: str) -> Any:
    """Import the readers of runs at their first use: the command line starts without pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from opdctl.runs import loaded

    return getattr(loaded, name)
