"""Makes the golden files of experiments: verl's overrides and the rendered manifests, one file a kind.

A kind's file holds its minimal experiment whole, and of every other experiment what differs from that.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gotools import find
from opd.config import FILE_KINDS, KINDS, ConvertSpec, PipelineSpec
from opd.config.reader import read_text
from opd.config.verl import RunFacts, compute_overrides
from opdctl.chart import helm
from opdctl.chart.values import Experiment, load_experiments

GOLDEN = Path(__file__).resolve().parent
ROOT = GOLDEN.parents[1]
MANIFESTS = ROOT / "manifests"
IMAGE = "registry.example.com/opd@sha256:" + "0123456789abcdef" * 4
# How a long line of JSON (the spec in the ConfigMap) is broken, so that a difference is a short line too.
_BREAKS = (("\\n", "\\n\n  "), (',"', ',\n  "'))


def overrides(folder: Path) -> None:
    """Writes verl's overrides of every experiment that starts verl."""
    _write(folder, {kind: _experiments(kind) for kind in KINDS if kind != "convert"}, _overrides_of)


def manifests(folder: Path) -> None:
    """Writes what `opdctl render` prints for every experiment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(helm.HELM_VARIABLE, str(find("helm")))
        _write(folder, {kind: _experiments(kind) for kind in FILE_KINDS}, _manifests_of)


def check(generate: Callable[[Path], None], folder: Path, scratch: Path) -> None:
    """Fails, with the differing lines, where what the code gives is not what the golden folder holds."""
    generate(scratch)
    names = {path.name for where in (folder, scratch) for path in where.iterdir()}
    texts = [[(where / name).read_text().splitlines() if (where / name).exists() else [] for name in sorted(names)]
             for where in (folder, scratch)]  # fmt: skip
    changed = [line for old, new in zip(*texts, strict=True) for line in _difference(old, new)]
    assert not changed, "\n".join(["if this is meant, run `make golden`:", *changed[:200]])


def _experiments(kind: str) -> dict[str, tuple[Experiment, bool]]:
    """Name -> (experiment, whether its models were fetched); the minimal one first, a sweep's cells each.

    All have one name, so that what differs is what they ask for.
    """
    written = read_text((GOLDEN / "experiments.yaml").read_text(), origin="experiments.yaml").tree
    shipped = {path.stem: read_text(path.read_text(), origin=path.name).tree
               for folder in ("experiments", "pipelines") for path in sorted((MANIFESTS / folder).glob("*.yaml"))}  # fmt: skip
    found: dict[str, tuple[Experiment, bool]] = {}
    for name, tree in {**written, **shipped}.items():
        if tree["kind"] == kind:
            is_fetched = bool(tree.pop("hub", False))
            for number, cell in enumerate(_load(tree, tree.pop("site", None))):
                found[f"{name}, cell {number}" if number else name] = (cell, is_fetched)
    return found


def _load(tree: dict[str, Any], site: str | None) -> list[Experiment]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.json"
        file.write_text(json.dumps(tree))
        below = MANIFESTS / "sites" / f"{site}.yaml" if site else None
        return load_experiments(file, site=below, env={}, sets=["name=run"], image=IMAGE)


def _overrides_of(experiment: Experiment, is_fetched: bool) -> list[str]:
    spec = experiment.spec
    assert not isinstance(spec, ConvertSpec | PipelineSpec)
    paths = {"model_path": "/hub/model", "teacher_paths": {"teacher": "/hub/teacher"}} if is_fetched else {}
    facts = RunFacts(run_id=spec.name, run_dir=f"outputs/{spec.name}", in_ray_cluster=spec.trainer.nnodes > 1, **paths)
    return compute_overrides(spec, run=facts)


def _manifests_of(experiment: Experiment, _: bool) -> list[str]:
    chart = helm.find_chart(experiment.spec.kind, ROOT / "charts")
    text = helm.template(experiment, chart=chart, namespace="opd", timeout_s=120)
    for mark, broken in _BREAKS:
        text = text.replace(mark, broken)
    return text.splitlines()


def _write(
    folder: Path,
    of_kind: dict[str, dict[str, tuple[Experiment, bool]]],
    make: Callable[[Experiment, bool], list[str]],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = {
            kind: {name: pool.submit(make, *item) for name, item in found.items()} for kind, found in of_kind.items()
        }
    for kind, futures in made.items():
        (first, base), *others = [(name, future.result()) for name, future in futures.items()]
        lines = [f"# {first}", *base]
        for name, text in others:
            lines += ["", f"# {name}", *_difference(base, text)]
        (folder / f"{kind}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _difference(old: list[str], new: list[str]) -> list[str]:
    """The lines that differ, `-` as in `old` and `+` as in `new`, and where they are."""
    return list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
