"""`python tools/kubeschemas.py`: strict JSON Schemas of the kinds that the charts render, made from Go modules.

Stricter than the API server on purpose: a field that the server would silently drop (unknown, or below an object without
declared fields) is an error here. Printed is the location pattern that kubeconform takes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

import gotools

SOURCES = ("ray-operator", "prometheus-operator", "kubernetes")  # modules of gotools
MONITORING = ("podmonitors", "prometheusrules")  # of the Prometheus operator's
PATTERN = "{{ .Group }}_{{ .ResourceAPIVersion }}_{{ .ResourceKind }}.json"
DEFINITIONS = "definitions.json"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
# Types that swagger.json calls strings while the API takes numbers too.
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}
_OPEN = ("properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")


def location() -> str:
    """kubeconform's `-schema-location` for the cached schemas; makes them first where they are missing."""
    versions = "-".join(gotools.MODULES[name][1] for name in SOURCES)
    folder = gotools.cache_dir() / f"schemas-{versions}-{'-'.join(MONITORING)}"
    done = folder / "complete"
    if not done.is_file():
        with gotools.one_builder("schemas"):
            if not done.is_file():  # another process may have made them while this one waited
                folder.mkdir(parents=True, exist_ok=True)
                for name, text in schemas().items():
                    (folder / name).write_text(text)
                done.touch()
    return str(folder / PATTERN)


def schemas() -> dict[str, str]:
    """File name -> text of every schema."""
    swagger = json.loads((gotools.module("kubernetes") / "api/openapi-spec/swagger.json").read_text())
    definitions = {name: SCALARS.get(name) or strict(_no_gvk(node)) for name, node in swagger["definitions"].items()}
    files = {DEFINITIONS: json.dumps({"definitions": definitions})}
    for name, node in swagger["definitions"].items():
        for gvk in node.get("x-kubernetes-group-version-kind", ()):  # kubeconform calls the core group by its version
            files[_file(gvk["group"] or gvk["version"], gvk["version"], gvk["kind"])] = json.dumps(
                {"$ref": _link(name)}
            )
    for path in crd_files():
        files |= crd_schemas(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))
    return files


def crd_files() -> list[Path]:
    """The CustomResourceDefinitions of KubeRay and of the Prometheus operator."""
    ray = (gotools.module("ray-operator") / "config/crd/bases").glob("*.yaml")
    monitoring = gotools.module("prometheus-operator") / "example/prometheus-operator-crd"
    return [*sorted(ray), *(monitoring / f"monitoring.coreos.com_{plural}.yaml" for plural in MONITORING)]


def crd_schemas(crd: dict[str, Any]) -> dict[str, str]:
    """File name -> text for each version of a CustomResourceDefinition."""
    spec = crd["spec"]
    files = {}
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"$ref": _link(OBJECT_META)}
        files[_file(spec["group"], version["name"], spec["names"]["kind"])] = json.dumps(schema)
    return files


def strict(node: Any) -> Any:
    """The schema with unknown fields refused wherever fields are declared, or where nothing says that any are kept."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: strict(value) for key, value in node.items() if key not in ("description", "default")}
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    if "properties" in node:  # a field may itself be called `description` or `default`
        out["properties"] = {key: strict(value) for key, value in node["properties"].items()}
    closed = "properties" in node and "additionalProperties" not in node
    pruned = node.get("type") == "object" and not any(key in node for key in _OPEN)
    if (closed or pruned) and not node.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    return out


def _no_gvk(node: dict[str, Any]) -> dict[str, Any]:
    """A definition of swagger.json; an object without declared fields there (FieldsV1, RawExtension) holds anything."""
    is_free = node.get("type") == "object" and "properties" not in node
    return {**node, "x-kubernetes-preserve-unknown-fields": True} if is_free else node


def _link(name: str) -> str:
    return f"{DEFINITIONS}#/definitions/{name}"


def _file(group: str, version: str, kind: str) -> str:
    return (
        PATTERN.replace("{{ .Group }}", group)
        .replace("{{ .ResourceAPIVersion }}", version)
        .replace("{{ .ResourceKind }}", kind.lower())
    )


if __name__ == "__main__":
    try:
        print(location())
    except gotools.ToolError as error:
        print(f"kubeschemas: {error}", file=sys.stderr)
        sys.exit(1)
