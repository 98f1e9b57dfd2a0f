"""The mounted experiment for programs in pods, without the schema that the trainer applies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_ROOT = "outputs"
"""The schema's default of `output.root`."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The fields that these programs read: the release's name, the run's local folder, its store, and the whole file."""

    run_id: str
    run_dir: Path
    store_url: str
    tree: Mapping[str, Any] = field(default_factory=dict)


def read_experiment(path: str | Path) -> Experiment:
    """Read the chart's file, which always has `name`."""
    tree = json.loads(Path(path).read_text(encoding="utf-8"))
    root = tree.get("output", {}).get("root", DEFAULT_ROOT).rstrip("/")
    store_url = tree.get("store", {}).get("url", f"{root}/store")
    return Experiment(run_id=tree["name"], run_dir=Path(root) / tree["name"], store_url=store_url, tree=tree)
