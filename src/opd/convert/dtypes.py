"""The precision each tensor is written in: as the checkpoint has it, as the base model has it, or bf16."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch

from opd.agent.environments import toy_models
from opd.convert.errors import BadRequest, ConvertError
from opd.data.toy import model_folder
from opd.store.access import open_url
from opd.store.remote import open_store

DtypeMode = Literal["checkpoint", "base", "bf16"]
# safetensors' names of plain floating types. A base in fp8 or int4 has scales beside its weights; a trained student has
# none, so that only the dtype of the base's config can be followed there.
_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SUFFIX = ".safetensors"
_OTHERWISE = "name another with convert.base_model (--base-model), or choose dtype checkpoint or bf16"


@dataclass(frozen=True, kw_only=True)
class BaseDtypes:
    """The precision of a model: of single tensors from its files' headers, of all others from its config.

    `folder` is where its files lie on this machine, None where they do not.
    """

    name: str
    default: torch.dtype | None
    by_tensor: Mapping[str, torch.dtype] = field(default_factory=dict)
    folder: Path | None = None


def plan_dtypes(
    mode: DtypeMode, stored: Mapping[str, torch.dtype], base: BaseDtypes | None = None
) -> dict[str, torch.dtype]:
    """The dtype to write each tensor in; integer and bool tensors stay what they are.

    Args:
        stored: dtype of each tensor in the checkpoint.
        base: needed for mode `base`.

    Raises:
        ConvertError: mode `base` and a base model that does not say the dtype of some tensor.
    """

    def target(name: str, dtype: torch.dtype) -> torch.dtype:
        if mode == "checkpoint" or not dtype.is_floating_point:
            return dtype
        if mode == "bf16":
            return torch.bfloat16
        if base is None:
            raise BadRequest(f"dtype base needs a base model: {_OTHERWISE}")
        followed = base.by_tensor.get(name, base.default)
        if followed is None:
            raise ConvertError(f"base model {base.name} says no dtype for {name} (none in its config): {_OTHERWISE}")
        return followed

    return {name: target(name, dtype) for name, dtype in stored.items()}


def main_dtype(plan: Mapping[str, torch.dtype], num_elements: Mapping[str, int]) -> torch.dtype:
    """The floating dtype that most elements are written in: what config.json says, and transformers loads with."""
    counts: Counter[torch.dtype] = Counter()
    for name, dtype in plan.items():
        if dtype.is_floating_point:
            counts[dtype] += num_elements[name]
    return counts.most_common(1)[0][0]


def read_base(reference: str, revision: str | None = None) -> BaseDtypes:
    """The dtypes of a model folder, a `toy://` or `agent://` model, a store URL or a Hugging Face id; weights are never downloaded.

    Of an id whose files are not in the local cache, only config.json is fetched.

    Raises:
        ConvertError: it is none of these, or cannot be read.
    """
    try:
        path = str(toy_models().get(reference) or model_folder(reference))
        if "://" in path:
            return _read_url(reference, path)
        folder = Path(path) if Path(path).is_dir() else _hub_folder(path, revision)
        config = json.loads((folder / "config.json").read_bytes())
        tensors: dict[str, torch.dtype] = {}
        for file in sorted(folder.glob(f"*{_SUFFIX}")):
            with file.open("rb") as stream:
                tensors |= _header_dtypes(stream)
        return BaseDtypes(name=reference, default=_config_dtype(config), by_tensor=tensors, folder=folder)
    except (OSError, ValueError) as error:
        raise ConvertError(
            f"base model {reference} cannot be read: {type(error).__name__}: {error}\n{_OTHERWISE}"
        ) from error


def _hub_folder(path: str, revision: str | None) -> Path:
    """The cached snapshot of a Hugging Face id, or a folder with its config.json alone."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return Path(hf_hub_download(path, "config.json", revision=revision)).parent


def _read_url(reference: str, url: str) -> BaseDtypes:
    store = open_store(url)
    tensors: dict[str, torch.dtype] = {}
    for name in store.children(""):
        if name.endswith(_SUFFIX):
            with open_url(f"{url.rstrip('/')}/{name}", "rb") as stream:
                tensors |= _header_dtypes(stream)
    return BaseDtypes(name=reference, default=_config_dtype(json.loads(store.get("config.json"))), by_tensor=tensors)


def _header_dtypes(stream: BinaryIO) -> dict[str, torch.dtype]:
    """Plain floating dtypes of a safetensors file: 8 bytes of length (little endian), then that much JSON."""
    header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    found = {name: _PLAIN.get(entry["dtype"]) for name, entry in header.items() if name != "__metadata__"}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def _config_dtype(config: Mapping[str, Any]) -> torch.dtype | None:
    """`dtype` (`torch_dtype` before transformers 5) of a config.json or of its text part."""
    for part in (config, config.get("text_config") or {}):
        name = part.get("dtype") or part.get("torch_dtype")
        if name is not None:
            dtype = getattr(torch, str(name), None)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"config.json: dtype {name!r} is not one of torch's")
            return dtype
    return None
