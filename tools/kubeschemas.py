"""Strict JSON Schemas of the kinds that the charts render, made from Go modules.

The schemas are stricter than the API server: a field that the server would silently drop is an error here. It is unknown, or
below an object without declared fields.
"""

import json
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
    """Return kubeconform's `-schema-location` of the cached schemas; make them first where they are missing."""
    versions = "-".join(gotools.MODULES[name][1] for name in SOURCES)
    folder = gotools.cache_dir() / f"schemas-{versions}-{'-'.join(MONITORING)}"
    done = folder / "complete"
    if not done.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in schemas().items():
            (folder / name).write_text(text)
        done.touch()
    return str(folder / PATTERN)


def schemas() -> dict[str, str]:
    """Return the text of every schema by its file name."""
    swagger = json.loads((gotools.module("kubernetes") / "api/openapi-spec/swagger.json").read_text())
    definitions = {name: SCALARS.get(name) or strict(_no_gvk(node)) for name, node in swagger["definitions"].items()}
    files = {DEFINITIONS: json.dumps({"definitions": definitions})}
    for name, node in swagger["definitions"].items():
        for gvk in node.get("x-kubernetes-group-version-kind", ()):  # kubeconform calls the core group by its version
            file = _file(gvk["group"] or gvk["version"], gvk["version"], gvk["kind"])
            files[file] = json.dumps({"$ref": _link(name)})
    for path in crd_files():
        files |= crd_schemas(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))
    return files


def crd_files() -> list[Path]:
    """Return the files of KubeRay's and of the Prometheus operator's CustomResourceDefinitions."""
    ray = (gotools.module("ray-operator") / "config/crd/bases").glob("*.yaml")
    monitoring = gotools.module("prometheus-operator") / "example/prometheus-operator-crd"
    return [*sorted(ray), *(monitoring / f"monitoring.coreos.com_{plural}.yaml" for plural in MONITORING)]


def crd_schemas(crd: dict[str, Any]) -> dict[str, str]:
    """Return the schema of each version of a CustomResourceDefinition by its file name."""
    spec = crd["spec"]
    files = {}
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"$ref": _link(OBJECT_META)}
        files[_file(spec["group"], version["name"], spec["names"]["kind"])] = json.dumps(schema)
    return files


def strict(node: Any) -> Any:
    """Return the schema, which rejects unknown fields where fields are declared, or where nothing says that any are kept."""
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
    """Return a definition of swagger.json; an object without declared fields (FieldsV1, RawExtension) holds anything."""
    is_free = node.get("type") == "object" and "properties" not in node
    return {**node, "x-kubernetes-preserve-unknown-fields": True} if is_free else node


def _link(name: str) -> str:
    return f"{DEFINITIONS}#/definitions/{name}"


def _file(group: str, version: str, kind: str) -> str:
    return f"{group}_{version}_{kind.lower()}.json"  # as PATTERN
