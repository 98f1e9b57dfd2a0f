"""Reads the mounted experiment for the programs in pods: quickly, so without the schema that the trainer applies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_ROOT = "outputs"
"""Folder under which a run makes its own; the schema's default of `output.root`."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What the programs in pods need of an experiment.

    Attributes:
        run_id: the release's name.
        run_dir: local folder of the run, relative to the working directory of its pods.
        store_url: the object store.
        tree: the whole file.
    """

    run_id: str
    run_dir: Path
    store_url: str
    tree: Mapping[str, Any] = field(default_factory=dict)


def read_experiment(path: str | Path) -> Experiment:
    """Read the file that the chart wrote: it always has `name`."""
    tree = json.loads(Path(path).read_text(encoding="utf-8"))
    root = tree.get("output", {}).get("root", DEFAULT_ROOT).rstrip("/")
    store_url = tree.get("store", {}).get("url", f"{root}/store")
    return Experiment(run_id=tree["name"], run_dir=Path(root) / tree["name"], store_url=store_url, tree=tree)
