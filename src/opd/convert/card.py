"""Descriptions in the converted folder: conversion.json for programs, README.md (the model card) for people."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opd.convert.source import Origin
from opd.convert.target import RECORD_FILE
from opd.convert.verify import describe

_PACKAGES = ("opd", "verl", "torch", "transformers")
_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
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
        facts: dtype_mode, num_parameters, world_size, base_model, verification, warnings.
    """
    counts = Counter(str(dtype).removeprefix("torch.") for dtype in dtypes)
    known = {key: value for key, value in dataclasses.asdict(origin).items() if not key.startswith("model_")}
    packages = {name: version(name) for name in _PACKAGES}
    return {"version": 1, **known, "num_tensors_by_dtype": dict(counts.most_common()), **facts, "packages": packages}


def write_card(folder: Path, record: Mapping[str, Any]) -> None:
    """Write both files into the folder."""
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")
    dtypes = ", ".join(f"{name} ({count} tensors)" for name, count in record["num_tensors_by_dtype"].items())
    rows = {
        "Run id": record["run_id"],
        "Step": record["step"],
        "Attempt": record["attempt"],
        "Spec hash": record["spec_hash"],
        "Source checkpoint": record["checkpoint"],
        "FSDP ranks": record["world_size"],
        "Base model": record["base_model"],
        "Weights": f"{dtypes}; dtype: {record['dtype_mode']}",
        "Parameters": f"{record['num_parameters']:,}",
        "Checked": describe(record["verification"]) if record["verification"] else "no (asked to skip it)",
        "Made with": ", ".join(f"{name} {number}" for name, number in record["packages"].items()),
    }
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items())
    notes = "".join(f"\n- {warning}" for warning in record["warnings"])
    title = f"{record['run_id'] or 'Checkpoint'}, step {_cell(record['step'])}"
    notes = f"\nWarnings of the conversion:\n{notes}\n" if notes else ""
    (folder / "README.md").write_text(_CARD.format(title=title, table=table, notes=notes))


def _cell(value: object) -> str:
    return "not known" if value is None else str(value).replace("|", "\\|").replace("\n", " ")
