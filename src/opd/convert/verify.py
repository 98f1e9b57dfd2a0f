"""The check of a conversion: plain transformers loads the folder, and has the checkpoint's model and weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger

# Keys of a config that say nothing of what the model computes.
_NOT_COMPARED = ("_name_or_path", "architectures", "dtype", "transformers_version")


def verify(folder: Path, merger: ShardMerger, dtypes: Mapping[str, torch.dtype]) -> dict[str, Any]:
    """Load `folder` as its users will, compare it with the checkpoint after the same cast, and return what was compared.

    Equal weights under an equal config make an equal model, so nothing is computed.

    Args:
        dtypes: dtype of each tensor after the cast.

    Raises:
        ConvertError: a tensor or the config differs, or transformers finds names that are missing or too many.
    """
    auto_class: Any = AutoModelForCausalLM
    converted, info = auto_class.from_pretrained(folder, trust_remote_code=merger.trusts, output_loading_info=True)
    if problems := {key: sorted(map(str, names)) for key, names in info.items() if key.endswith("_keys") and names}:
        raise ConvertError(f"transformers does not find the model's weights in the written folder: {problems}")
    loaded = converted.state_dict()
    for name in merger.names():
        if not torch.equal(loaded[name], merger.tensor(name).to(dtypes[name]).to(loaded[name].dtype)):
            raise ConvertError(f"{name} of the written model is not the checkpoint's after the cast to {dtypes[name]}")
    ours, theirs = (_compared(config.to_dict()) for config in (converted.config, merger.config))
    if odd := sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)):
        raise ConvertError(f"config.json of the written model is not the checkpoint's: {', '.join(odd)} differ")
    if list(folder.glob("tokenizer*")):
        AutoTokenizer.from_pretrained(folder, trust_remote_code=merger.trusts)
    return {"num_tensors": len(loaded)}


def describe(verified: Mapping[str, Any]) -> str:
    """Return the result of `verify` as a sentence."""
    return f"config and {verified['num_tensors']} tensors equal bit for bit"


def _compared(config: Any) -> Any:
    """Return a config without `_NOT_COMPARED`, also in its parts."""
    if not isinstance(config, dict):
        return config
    return {key: _compared(value) for key, value in config.items() if key not in _NOT_COMPARED}
