"""Which data files, models, programs and databases of a run no volume of its pods can hold, by what the chart renders."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from opd.config import FileSpec
from opd.config.kinds import AnySpec, ConvertSpec, PipelineSpec
from opd.config.pipeline import stages_of
from opd.inputs import Inputs, is_module
from opd.inputs.models import is_hub_id
from opdctl.doctor.rendered import groups_of
from opdctl.doctor.report import Check, warning
from opdctl.kube.dry_run import rendered_objects

_FIX = (
    "name a URL (s3://...), or a path below cluster.mounts[].path of a claim that has it (`opdctl stage` fills one); "
    "nothing to mend where the image itself has it"
)


def check_held(spec: FileSpec, text: str) -> list[Check]:
    """A warning for each key with a path that no volume holds; URLs, bundled names, hub ids and modules are none.

    Args:
        text: what the chart renders.
    """
    objects = rendered_objects(text)
    group = groups_of(objects, "")[0]  # the chart gives head and workers the same volumes
    container = group.spec["containers"][0]  # Ray's own
    folder = container.get("workingDir", "/")
    made = {tree["metadata"]["name"] for tree in objects if tree["kind"] == "PersistentVolumeClaim"}
    sources = {volume["name"]: volume for volume in group.spec.get("volumes") or ()}
    # What Ray's container may not write somebody else has filled: an init container does so with a fetched tool database.
    mounts = {
        item["mountPath"]: {} if item.get("readOnly") else sources.get(item["name"], {})
        for item in container.get("volumeMounts") or ()
    }
    filled = [path for path, source in mounts.items() if not {"emptyDir", "ephemeral"} & source.keys()]
    there = [path for path in filled if mounts[path].get("persistentVolumeClaim", {}).get("claimName") not in made]
    out = []
    for under, key, paths in _paths(spec):
        outside = [
            path
            for path in paths
            if not _is_below(posixpath.join(folder, path), filled if path.startswith("/") else there)
        ]
        if outside:
            more = f" and {len(outside) - 1} more" if outside[1:] else ""
            why = "" if outside[0].startswith("/") else f"; pods look for it in {folder}, the run's new volume"
            message = f"{under}{key} {outside[0]}{more}: no volume of the pods holds it{why}"
            out.append(warning(key.partition(".")[0], message, _FIX))
    return out


def _paths(spec: FileSpec) -> Iterator[tuple[str, str, Sequence[str]]]:
    """(stage, key, what can only be a path of the pods) of all that each run reads."""
    runs: list[tuple[str, AnySpec]] = (
        [(f"stages.{stage.name}.", stage.spec) for stage in stages_of(spec)]
        if isinstance(spec, PipelineSpec)
        else [("", spec)]
    )
    for under, run in runs:
        if isinstance(run, ConvertSpec):
            continue
        inputs = Inputs.of(run)
        for key, path in inputs.models:
            yield under, key, [] if "://" in path or is_hub_id(path) else [path]
        for data in inputs.data:
            yield under, data.key, [path for path in data.files if "://" not in path]
        for key, path in inputs.places:
            yield under, key, [] if "://" in path or is_module(path) else [path]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    whole = posixpath.normpath(path)
    normal = [posixpath.normpath(folder) for folder in folders]
    return any(whole == folder or whole.startswith(f"{folder.rstrip('/')}/") for folder in normal)
