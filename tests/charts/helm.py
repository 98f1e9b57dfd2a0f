"""Renders charts with the real helm, each combination once, and finds things in what was rendered."""

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gotools import find
from opd.experiment import FILE_KINDS

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "charts"
_SHIPPED = {
    path.stem: path
    for folder in ("experiments", "pipelines")
    for path in sorted((ROOT / "manifests" / folder).glob("*.yaml"))
}
SWEEPS = {name: path for name, path in _SHIPPED.items() if "\nmatrix:" in path.read_text()}
# Those that a chart takes as they are.
EXPERIMENTS = {name: path for name, path in _SHIPPED.items() if name not in SWEEPS}
SITES = {path.stem: path for path in sorted((ROOT / "manifests/sites").glob("*.yaml"))}
DIGEST = "registry.example.com/opd@sha256:" + "0123456789abcdef" * 4
IMAGE = {"cluster": {"image": {"ref": DIGEST}}}
RUN = "my-run"
SERVE = {"teacher": {"dtype": "bf16", "serve": {"gpus": 2, "replicas": 3, "args": ["--max-model-len", "4096"]}}}
# With everything switched on.
EVERYTHING = {
    "cluster": {
        "image": {"pullSecrets": ["registry"]},
        "lifecycle": "suspendable",
        "queue": {"manager": "kueue", "name": "q", "priorityClass": "p"},
        "deadlines": {"activeSeconds": 9000, "preRunningSeconds": 600},
        "cache": {"claim": "hub"},
        "mounts": [{"claim": "a", "path": "/a", "subPath": "x"}],
        "secrets": {"huggingFace": {"secret": "h", "key": "t"}, "store": "s"},
        "auth": {"secret": "ray-token"},
        "networkPolicy": {"metricsNamespace": "monitoring"},
        "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "extraVolumes": [{"name": "x", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
        "annotations": {"a/b": "c"},
        "head": {"tolerations": [{"key": "k", "operator": "Exists"}], "priorityClassName": "high"},
    }
}
# For a chart that has ranks.
SIZES = {"trainer": {"gpus_per_node": 8}}


def kind_of(experiment: str) -> str:
    return yaml.safe_load(EXPERIMENTS[experiment].read_text())["kind"]


# One example of each kind, for tests of what all charts have in common.
EXAMPLE_OF = {kind: next(name for name in EXPERIMENTS if kind_of(name) == kind) for kind in FILE_KINDS}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; stderr without the line that it prints for each symbolic link."""
    done = subprocess.run([str(find("helm")), *arguments], capture_output=True, text=True, timeout=60, check=False)
    done.stderr = "\n".join(line for line in done.stderr.splitlines() if "found symbolic link in path" not in line)
    return done


def template(
    chart: str, *layers: dict[str, Any], experiment: str | None = None, name: str = RUN, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`helm template` of an experiment (by default the kind's example, "" for none) with layers of values over it."""
    return _template(chart, EXAMPLE_OF[chart] if experiment is None else experiment, name, flags, json.dumps(layers))


@functools.cache
def _template(
    chart: str, experiment: str, name: str, flags: tuple[str, ...], layers: str
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        files = [str(EXPERIMENTS[experiment])] if experiment else []
        for number, layer in enumerate(json.loads(layers)):
            path = Path(folder) / f"{number}.json"
            path.write_text(json.dumps(layer))
            files.append(str(path))
        values = [word for file in files for word in ("-f", file)]
        return helm("template", name, str(CHARTS / chart), "--namespace", "opd", *values, *flags)


def objects(chart: str, *layers: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    done = template(chart, IMAGE, *layers, **options)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@functools.cache
def _loaded(text: str) -> str:
    return json.dumps([tree for tree in yaml.load_all(text, Loader=yaml.CSafeLoader) if tree])


def parsed(text: str) -> list[dict[str, Any]]:
    return json.loads(_loaded(text))


def one(trees: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    [found] = [tree for tree in trees if tree["kind"] == kind and name in (None, tree["metadata"]["name"])]
    return found


def rayjob(chart: str, *layers: dict[str, Any], **options: Any) -> dict[str, Any]:
    return one(objects(chart, *layers, **options), "RayJob")["spec"]


def refusal(chart: str, *layers: dict[str, Any], **options: Any) -> str:
    done = template(chart, IMAGE, *layers, **options)
    assert done.returncode != 0, "rendered without a complaint"
    assert not done.stdout
    return done.stderr


def pod_templates(trees: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every pod template among the objects: (role, template with metadata and spec)."""
    for tree in trees:
        if tree["kind"] == "Job":
            yield "check", tree["spec"]["template"]
        if tree["kind"] == "RayJob":
            cluster = tree["spec"]["rayClusterSpec"]
            yield "head", cluster["headGroupSpec"]["template"]
            for group in cluster.get("workerGroupSpecs", ()):
                yield group["groupName"], group["template"]
            if "submitterPodTemplate" in tree["spec"]:
                yield "submitter", tree["spec"]["submitterPodTemplate"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container.get("env", ())}


def head(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]


def worker(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]


def pods(chart: str, *layers: dict[str, Any], **options: Any) -> dict[str, Any]:
    return dict(pod_templates(objects(chart, *layers, **options)))


def mounts(container: dict[str, Any]) -> dict[str, Any]:
    return {item["mountPath"]: item for item in container["volumeMounts"]}


def volumes(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item for item in pod["spec"]["volumes"]}
