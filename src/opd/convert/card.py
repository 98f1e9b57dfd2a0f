"""Descriptions in the converted folder: conversion.json for programs, README.md (the model card) for people."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, hf_hub_download
from yaml import YAMLError

from opd.convert.hub import name_fault
from opd.convert.source import Origin
from opd.convert.target import RECORD_FILE
from opd.convert.verify import describe
from opd.experiment.types import HUB
from opd.runs.origin import version_of

_LICENCE_KEYS = ("license", "license_name", "license_link")
_PACKAGES = ("opd", "verl", "torch", "transformers")
_CARD = """\
---
{metadata}
---

# {title}

Converted from an FSDP checkpoint of verl by `python -m opd.convert`.

| | |
| --- | --- |
{table}
{notes}
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder)  # this folder
tokenizer = AutoTokenizer.from_pretrained(folder)
```
"""


def make_record(origin: Origin, *, dtypes: Sequence[Any], **facts: Any) -> dict[str, Any]:
    """Return the content of conversion.json: the weights' origin, their cast and the check.

    Args:
        dtypes: of each written tensor.
        facts: dtype_mode, num_parameters, world_size, base_model, licence, verification, warnings.
    """
    counts = Counter(str(dtype).removeprefix("torch.") for dtype in dtypes)
    known = {key: value for key, value in dataclasses.asdict(origin).items() if not key.startswith("model_")}
    packages = {name: number for name in _PACKAGES if (number := version_of(name))}
    return {"version": 1, **known, "num_tensors_by_dtype": dict(counts.most_common()), **facts, "packages": packages}


def licence_of(base: str | None, revision: str | None) -> dict[str, str]:
    """Return a base model's licence: the keys of its own card, else the `file` of a licence; empty without both.

    Args:
        base: a folder, or a name of the hub, of which only README.md is read, at `revision`.
    """
    if base is None:
        return {}
    folder = Path(base)
    try:
        path = folder if folder.is_dir() else Path(hf_hub_download(base, "README.md", revision=revision)).parent
        own = ModelCard.load(path / "README.md", ignore_metadata_errors=True).data
    except (OSError, ValueError, TypeError, YAMLError):
        own = ModelCardData()
    if isinstance(own.license, str):
        return {name: value for name in _LICENCE_KEYS if isinstance(value := own.get(name), str)}
    files = sorted(path.name for path in folder.glob("LICEN[CS]E*")) if folder.is_dir() else []
    return {"file": files[0]} if files else {}


def write_card(folder: Path, record: Mapping[str, Any]) -> None:
    """Write both files into the folder."""
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")
    dtypes = ", ".join(f"{name} ({count} tensors)" for name, count in record["num_tensors_by_dtype"].items())
    base, licence = record["base_model"], record["licence"]
    hub_sets = [file.removeprefix(HUB).partition("?")[0] for file in record["data"] if file.startswith(HUB)]
    metadata = ModelCardData(
        base_model=base if base and _is_hub_name(base) else None,
        datasets=list(dict.fromkeys(hub_sets)) or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["opd", *([record["kind"]] if record["kind"] not in (None, "opd") else [])],
        **{name: licence[name] for name in _LICENCE_KEYS if name in licence},
    )
    rows = {
        "Student": base and _public(base),
        "Teacher": ", ".join(map(_public, record["teachers"])),
        "Training data": ", ".join(map(_public, record["data"])),
        f"Validation at step {record['validation_step']}": ", ".join(
            f"{name} {value:.4g}" for name, value in record["validation"].items()
        ),
        "Licence": ", ".join(f"{name} {value}" for name, value in licence.items()) or "not known from the base model",
        "Run id": record["run_id"],
        "Step": record["step"],
        "Weights": f"{dtypes}; dtype: {record['dtype_mode']}",
        "Checked": describe(record["verification"]) if record["verification"] else "no (asked to skip it)",
    }
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items() if value not in (None, ""))
    notes = "".join(f"\n- {warning}" for warning in record["warnings"])
    title = record["run_id"] or "Checkpoint"
    title += "" if record["step"] is None else f", step {record['step']}"
    notes = f"\nWarnings of the conversion:\n{notes}\n" if notes else ""
    (folder / "README.md").write_text(_CARD.format(metadata=metadata.to_yaml(), title=title, table=table, notes=notes))


def _is_hub_name(model: str) -> bool:
    """Return True for a name that the hub takes as a base model; a folder of this machine has none."""
    return not name_fault(model) and not Path(model).exists()


def _public(place: str) -> str:
    """Return a name for readers elsewhere: an address or a name of the hub as it is, of a path the last part."""
    return place if "://" in place or _is_hub_name(place) else Path(place).name


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
