"""Model folders: there, with a config, a tokenizer and every weight file that their index names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opd.agent.environments import toy_models
from opd.data import toy
from opd.experiment.defaults import context_of
from opd.experiment.errors import Problem
from opd.experiment.pipeline import OF_A_STAGE
from opd.store.access import CREATE_ONLY_PROTOCOLS, is_store_url

# What the hub takes for the name of a repository; anything else can only be a folder.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LATER = (OF_A_STAGE, "hdfs://")  # there by then, and copied by verl itself
_COPY = "copy the model again, or download it with `hf download ID --local-dir FOLDER`"
_FROM_GGUF = "a Hugging Face folder, as `python -m opd.data.fetch_smollm2` makes from SmolLM2's GGUF file"
_NUM_SHOWN = 3
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


def _bundled() -> dict[str, Path]:
    return {**toy.MODELS, **toy_models()}


def is_hub_id(path: str) -> bool:
    """Whether a model of this name may be one of the hub."""
    return bool(_HUB_ID.fullmatch(path))


def model_problems(models: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """What is wrong with (key, path) of models on this machine; hub ids and store URLs are left to their loaders."""
    for key, path in models:
        if "://" in path:
            if not (path in _bundled() or is_store_url(path) or path.startswith(_LATER)):
                rule, fix = _address_fault(path)
                yield Problem(path=key, value=path, rule=rule, fix=fix)
            continue
        folder = Path(path)
        if folder.suffix == ".gguf" or (any(folder.glob("*.gguf")) and not (folder / "config.json").exists()):
            yield Problem(path=key, value=path, rule="GGUF weights are quantized and are not trained", fix=_FROM_GGUF)
        elif folder.is_dir():
            yield from (Problem(path=key, value=path, rule=rule, fix=_COPY) for rule in _folder_faults(folder))
        elif folder.exists():
            yield Problem(path=key, value=path, rule="this is a file; a model is a folder", fix=str(folder.parent))
        elif not is_hub_id(path):
            yield Problem(
                path=key,
                value=path,
                rule="there is no such folder; a Hugging Face id is NAME or OWNER/NAME",
                fix="a folder that is there, OWNER/NAME of a model on the hub, or a store URL",
            )


def _address_fault(path: str) -> tuple[str, str]:
    """Return (rule, fix) of an address that no model is read from."""
    protocol = path.partition("://")[0]
    bundled = [name for name in _bundled() if name.startswith(f"{protocol}://")]
    if bundled:
        return "this is no bundled model", " or ".join(bundled)
    stores = ", ".join(f"{name}://" for name in CREATE_ONLY_PROTOCOLS)
    rule = f"no model is read from {protocol}://; a model is a folder, OWNER/NAME on the hub, or a store URL ({stores})"
    return rule, "write OWNER/NAME, the folder's path, or copy it into such a store"


def context_of_folder(path: str) -> int | None:
    """`opd.experiment.defaults.context_of` a bundled model or a folder on this machine; None for any other, or an unreadable one."""
    try:
        config = json.loads((Path(_bundled().get(path, path)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return context_of(config) if isinstance(config, dict) else None


def _folder_faults(folder: Path) -> Iterator[str]:
    config = folder / "config.json"
    try:
        if not isinstance(json.loads(config.read_text(encoding="utf-8")), dict):
            yield "its config.json is no JSON object"
    except FileNotFoundError:
        inside = sorted(p.parent.name for p in folder.glob("*/config.json"))
        yield "it has no config.json, so it is no model" + (
            f"; {', '.join(inside[:_NUM_SHOWN])} inside it has" if inside else ""
        )
        return
    except (OSError, ValueError) as error:
        yield f"its config.json cannot be read: {error}"
    if not any((folder / name).exists() for name in _TOKENIZERS):
        yield f"it has no tokenizer (none of {', '.join(_TOKENIZERS)})"
    yield from _weight_faults(folder)


def _weight_faults(folder: Path) -> Iterator[str]:
    for index in (folder / name for name in _INDEXES if (folder / name).exists()):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield f"its {index.name} cannot be read: {type(error).__name__}: {error}"
            continue
        if missing := sorted(name for name in named if not (folder / name).exists()):
            shown = ", ".join(missing[:_NUM_SHOWN]) + (", ..." if len(missing) > _NUM_SHOWN else "")
            yield f"{len(missing)} of the {len(named)} weight files of its {index.name} are not there: {shown}"
    files = [file for pattern in _WEIGHTS for file in sorted(folder.glob(pattern))]
    if not files:
        yield f"it has no weights ({' or '.join(_WEIGHTS)})"
    for file in files:
        if file.suffix == ".safetensors" and (fault := _cut_off(file)):
            yield fault


def _cut_off(file: Path) -> str | None:
    """Return the fault of a safetensors file that is shorter than its header asks for (8 bytes: length of the JSON header)."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(header_bytes)) if header_bytes <= min(size, _MAX_HEADER_BYTES) else None
        ends = [entry["data_offsets"][1] for name, entry in (header or {}).items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {file.name} cannot be read: {type(error).__name__}: {error}"
    if header is None or 8 + header_bytes + max(ends, default=0) > size:
        return f"its {file.name} is cut off: {size} bytes, fewer than its header asks for"
    return None
