"""A first site file and experiment file: choices from the cluster, and YAML below the schema's descriptions."""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opd.config import SpecError
from opd.config.cluster import Gpu, number
from opd.config.keys import Key, cluster_keys, spec_keys
from opd.config.load import SITE_KEYS
from opd.config.tree import set_path
from opdctl.chart.values import load_experiments
from opdctl.kube.client import CLASSES, DEFAULT_CLASS, KUEUE, KubeApi
from opdctl.kube.errors import HTTP_NOT_FOUND, ClusterError, ClusterUnreachable

WIDTH = 118
# Taints of the node controller, which it removes when the node is ready.
_STATE_TAINTS = tuple(f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable"))


@dataclass(frozen=True, kw_only=True)
class GpuType:
    """Nodes with one type of GPU: the most GPUs of a node, and tolerations for the nodes' taints."""

    name: str
    num_gpus: int
    tolerations: list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The cluster's choices, the default or largest first; `remarks` names what could not be read."""

    gpus: list[GpuType] = field(default_factory=list)
    storage_classes: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def look_at_offers(api: KubeApi) -> Offers:
    """Read nodes, storage classes and Kueue's queues of the namespace.

    Raises:
        ClusterUnreachable: the API server does not answer.
    """
    remarks: list[str] = []

    def read(path: str) -> list[dict[str, Any]]:
        try:
            return api.list(path)
        except ClusterUnreachable:
            raise
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND:
                remarks.append(str(error))
            return []

    classes = read(CLASSES)
    classes.sort(key=lambda item: (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) != "true")
    group = api.find(f"/apis/{KUEUE}")
    base = f"/apis/{group['preferredVersion']['groupVersion']}/namespaces/{api.namespace}" if group else ""
    return Offers(
        gpus=gpu_types(read("/api/v1/nodes")),
        storage_classes=[item["metadata"]["name"] for item in classes],
        queues=[item["metadata"]["name"] for item in (read(f"{base}/localqueues") if base else [])],
        remarks=remarks,
    )


def gpu_types(nodes: list[dict[str, Any]]) -> list[GpuType]:
    """Return the types of GPU among nodes, the type with most GPUs on a node first."""
    gpu, found = Gpu(), dict[str, GpuType]()
    for node in nodes:
        name = (node["metadata"].get("labels") or {}).get(gpu.type_label)
        num_gpus = int(number(((node.get("status") or {}).get("allocatable") or {}).get(gpu.resource, 0)))
        if name is None or not num_gpus:
            continue
        known = found.get(name) or GpuType(name=name, num_gpus=0, tolerations=[])
        tolerations = [
            {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
            for taint in (node.get("spec") or {}).get("taints") or ()
            if taint["effect"] != "PreferNoSchedule" and taint["key"] not in _STATE_TAINTS
        ]
        more = [item for item in tolerations if item not in known.tolerations]
        num_gpus = max(known.num_gpus, num_gpus)
        found[name] = GpuType(name=name, num_gpus=num_gpus, tolerations=known.tolerations + more)
    return sorted(found.values(), key=lambda item: -item.num_gpus)


def two_files(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the texts of site file and experiment file, from values by their dotted paths.

    Raises:
        SpecError: they break a rule.
    """
    keys = {**spec_keys("opd"), **cluster_keys()}
    site: dict[str, Any] = {}
    experiment: dict[str, Any] = {"kind": "opd"}
    for path, value in values.items():
        set_path(site if path.partition(".")[0] in SITE_KEYS else experiment, path, value)
    texts = (
        _text(
            "Keys that every run on this cluster shares; the file goes under each experiment.",
            site or {"cluster": {}},
            keys,
        ),
        _text("One experiment. `opdctl explain KEY` explains further keys.", experiment, keys),
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("site.yaml", "exp.yaml")]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
        try:
            load_experiments(files[1], site=files[0], env={})
        except SpecError as error:
            raise SpecError(error.problems, origin="these options") from None
    return texts


def _text(title: str, tree: Mapping[str, Any], keys: Mapping[str, Key]) -> str:
    return "\n".join([*_comment(title, ""), *_lines(tree, keys, "")]) + "\n"


def _lines(tree: Mapping[str, Any], keys: Mapping[str, Key], prefix: str, indent: str = "") -> Iterator[str]:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, keys, f"{path}.", indent + "  ")
            continue
        if path in keys:
            yield from _comment(keys[path].says, indent)
        yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}"


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent) - 2)]
