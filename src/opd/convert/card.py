"""What the converted folder says about itself: conversion.json for programs, README.md (the model card) for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from opd.convert.source import Origin
from opd.convert.target import RECORD_FILE
from opd.convert.verify import Verification

_PACKAGES = ("opd", "verl", "torch", "transformers")
_NOT_TOLD = "not known (the checkpoint lies outside a run directory)"


def make_record(
    origin: Origin,
    *,
    mode: str,
    dtypes: Mapping[str, torch.dtype],
    num_parameters: int,
    world_size: int,
    base_model: str | None,
    verification: Verification | None,
    warnings: list[str],
) -> dict[str, Any]:
    """conversion.json: where the weights come from, how they were cast and what was checked."""
    counts = Counter(str(dtype).removeprefix("torch.") for dtype in dtypes.values())
    return {
        "version": 1,
        "run_id": origin.run_id,
        "step": origin.step,
        "attempt": origin.attempt,
        "spec_hash": origin.spec_hash,
        "checkpoint": origin.checkpoint,
        "world_size": world_size,
        "dtype_mode": mode,
        "num_tensors_by_dtype": dict(counts.most_common()),
        "num_parameters": num_parameters,
        "base_model": base_model,
        "verification": verification.to_record() if verification is not None else None,
        "warnings": warnings,
        "packages": {name: version(name) for name in _PACKAGES},
    }


def write_card(folder: Path, record: Mapping[str, Any], verification: Verification | None) -> None:
    """Both files into the folder."""
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")
    (folder / "README.md").write_text(_card(record, verification))


def _card(record: Mapping[str, Any], verification: Verification | None) -> str:
    """The model card; its front matter holds only what is known for any model of the project."""
    told = {
        key: _NOT_TOLD if record[key] is None else record[key] for key in ("run_id", "step", "attempt", "spec_hash")
    }
    dtypes = ", ".join(f"{name} ({count} tensors)" for name, count in record["num_tensors_by_dtype"].items())
    packages = ", ".join(f"{name} {number}" for name, number in record["packages"].items())
    rows = {
        "Run id": told["run_id"],
        "Step": told["step"],
        "Attempt": told["attempt"],
        "Spec hash": told["spec_hash"],
        "Source checkpoint": record["checkpoint"],
        "FSDP ranks": record["world_size"],
        "Base model": record["base_model"] or "not known",
        "Weights": f"{dtypes}; dtype: {record['dtype_mode']}",
        "Parameters": f"{record['num_parameters']:,}",
        "Checked": verification.describe() if verification is not None else "no (asked to skip it)",
        "Made with": packages,
    }
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items())
    notes = "".join(f"\n- {warning}" for warning in record["warnings"])
    title = f"{record['run_id'] or 'Checkpoint'}, step {told['step']}"
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
        f"# {title}\n\nConverted from an FSDP checkpoint of verl by `python -m opd.convert`.\n\n"
        f"| | |\n| --- | --- |\n{table}\n"
        + (f"\nWarnings of the conversion:\n{notes}\n" if notes else "")
        + "\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        "model = AutoModelForCausalLM.from_pretrained(folder)  # this folder\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n```\n"
    )


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
