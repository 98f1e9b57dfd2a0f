"""Owns the values that a chart gets: the experiment file as the house's reader reads it, with what the front door changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd.spec import AnySpec, dump_spec, load_text
from opd.spec.reader import read_text
from opd.spec.tree import get_path, set_path
from opdctl.errors import usage_error
from opdctl.sweep import expand


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One plain experiment: its validated spec, and the values as they were written (defaults are the chart's)."""

    spec: AnySpec
    values: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def run_id(self) -> str:
        return self.spec.name


def load_experiments(
    file: Path,
    *,
    overlays: Iterable[Path] = (),
    env: Mapping[str, str],
    sets: Iterable[str] = (),
    image: str | None = None,
) -> list[Experiment]:
    """Reads an experiment file; a `matrix` gives one experiment a cell.

    Args:
        overlays: files whose keys go over the file's (maps are merged, everything else is replaced, as Helm does).
        env: variables of the original to apply.
        sets: `spec.path=value`.
        image: `cluster.image.ref`.

    Raises:
        SpecError: the spec cannot be used; every problem of the first bad cell.
    """
    tree = _read(file)
    for overlay in overlays:
        tree = merge(tree, _read(overlay))
    if image is not None:
        tree = merge(tree, {"cluster": {"image": {"ref": image}}})
    return [_load(cell, env, list(sets), origin=str(file)) for cell in expand(tree, origin=str(file))]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Maps merged key by key, everything else replaced."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _load(tree: dict[str, Any], env: Mapping[str, str], sets: list[str], *, origin: str) -> Experiment:
    loaded = load_text(json.dumps(tree), origin=origin, is_json=True, env=env, sets=sets)
    resolved = dump_spec(loaded.spec)
    # Only what was overridden goes into the values: the chart fills in the same defaults for `helm` and for the tool.
    for path in [item.path for item in loaded.env_applied] + [text.partition("=")[0] for text in sets]:
        set_path(tree, path, get_path(resolved, path))
    applied = [f"environment {item.name}: {item.path} = {item.value}" for item in loaded.env_applied]
    return Experiment(spec=loaded.spec, values=tree, notes=(*applied, *loaded.notes))


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"{file} cannot be read: {error}") from error
    return read_text(text, origin=str(file), is_json=file.suffix == ".json").tree
