"""Golden files of experiments: verl's overrides for each kind that starts verl, rendered manifests for two kinds."""

import difflib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gotools import find
from opd.experiment import ConvertSpec, PipelineSpec
from opd.experiment.reader import read_text
from opd.experiment.run_config import RunFacts
from opd.experiment.verl import compute_overrides
from opdctl.chart import helm
from opdctl.chart.values import Experiment, load_experiments

GOLDEN = Path(__file__).resolve().parent
ROOT = GOLDEN.parents[1]
SITES = ROOT / "manifests" / "sites"
IMAGE = "registry.example.com/opd@sha256:" + "0123456789abcdef" * 4
RENDERED = ("grpo", "opd-agent")
"""Kinds whose manifests are kept: one in a queue, and one with tools and RDMA."""
# Breaks of a long line of JSON (the spec in the ConfigMap), so that a difference is a short line too.
_BREAKS = (("\\n", "\\n\n  "), (',"', ',\n  "'))


def overrides(folder: Path) -> None:
    """Write verl's overrides of each experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, tree in _experiments().items():
        is_fetched = tree.pop("hub", False)
        spec = _load(tree).spec
        assert not isinstance(spec, ConvertSpec | PipelineSpec)
        paths = {"model_path": "/hub/model", "teacher_paths": {"teacher": "/hub/teacher"}} if is_fetched else {}
        facts = RunFacts(
            run_id=spec.name, run_dir=f"outputs/{spec.name}", in_ray_cluster=spec.trainer.nnodes > 1, **paths
        )
        _write(folder, kind, compute_overrides(spec, run=facts))


def manifests(folder: Path) -> None:
    """Write the output of `opdctl render` for two of the experiments."""
    folder.mkdir(parents=True, exist_ok=True)
    found = _experiments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(helm.HELM_VARIABLE, str(find("helm")))
        for kind in RENDERED:
            found[kind].pop("hub", False)
            text = helm.template(_load(found[kind]), namespace="opd")
            for mark, broken in _BREAKS:
                text = text.replace(mark, broken)
            _write(folder, kind, text.splitlines())


def check(generate: Callable[[Path], None], folder: Path, scratch: Path) -> None:
    """Fail, with the differing lines, where the code's result is not the golden folder's content."""
    generate(scratch)
    names = {path.name for where in (folder, scratch) for path in where.iterdir()}
    texts = [[(where / name).read_text().splitlines() if (where / name).exists() else [] for name in sorted(names)]
             for where in (folder, scratch)]  # fmt: skip
    changed = [
        line for old, new in zip(*texts, strict=True) for line in difflib.unified_diff(old, new, n=0, lineterm="")
    ]
    assert not changed, "\n".join(["if this is meant, run `make golden`:", *changed[:200]])


def _experiments() -> dict[str, dict[str, Any]]:
    trees = read_text(f"of: {(GOLDEN / 'experiments.yaml').read_text()}", origin="experiments.yaml").tree["of"]
    return {tree["kind"]: tree for tree in trees}


def _load(tree: dict[str, Any]) -> Experiment:
    site = tree.pop("site", None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.json"
        file.write_text(json.dumps(tree))
        below = SITES / f"{site}.yaml" if site else None
        [experiment] = load_experiments(file, site=below, env={}, sets=["name=run", f"cluster.image.ref={IMAGE}"])
        return experiment


def _write(folder: Path, kind: str, lines: list[str]) -> None:
    (folder / f"{kind}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
