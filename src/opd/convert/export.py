"""The written folder: merged weights, and everything else that a user of the model needs."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from opd.convert.errors import ConvertError, Warnings
from opd.convert.merger import ShardMerger

# Files of this size load in parallel and can be fetched again one by one.
MAX_SHARD_SIZE = "5GB"
GENERATION_FILE = "generation_config.json"
# Written anew.
_NOT_COPIED = ("config.json", "README.md")


def write_model(folder: Path, merger: ShardMerger, dtypes: Mapping[str, torch.dtype], dtype: torch.dtype) -> list[str]:
    """Write config.json, safetensors files (with an index if there are several) and a generation config.

    Args:
        dtypes: of each tensor. dtype: of the model, in its config.

    Returns:
        The names of the written tensors: of tied tensors only the first.

    Raises:
        ConvertError: the config describes another model than the tensors, or a tensor is not finite.
    """
    state = {name: _cast(merger, name, dtypes[name]) for name in merger.names()}
    model = merger.empty_model(dtype)
    tied = model.all_tied_weights_keys  # by the second name of each
    for name, kept in tied.items():
        value = state.pop(name, None)
        if value is not None and not (kept in state and torch.equal(value, state[kept])):
            raise ConvertError(
                f"config.json says tie_word_embeddings, but the checkpoint's {name} and {kept} differ: the trainer did not train "
                "them as one; set tie_word_embeddings to false in the checkpoint's huggingface/config.json"
            )
    _check_names(set(state), model)
    written = sorted(state)
    model.save_pretrained(folder, state_dict=state, max_shard_size=MAX_SHARD_SIZE)
    return written


def _cast(merger: ShardMerger, name: str, dtype: torch.dtype) -> torch.Tensor:
    stored = merger.tensor(name)
    cast = stored.to(dtype)
    if not torch.isfinite(cast).all():
        where = f"after the cast to {dtype}" if torch.isfinite(stored).all() else "in the checkpoint"
        raise ConvertError(f"{name} holds values that are not finite {where}")
    return cast


def _check_names(names: set[str], model: PreTrainedModel) -> None:
    expected = set(model.state_dict())
    missing, unknown = expected - names - set(model.all_tied_weights_keys), names - expected
    if missing or unknown:
        raise ConvertError(
            f"the checkpoint does not hold the weights of its {type(model).__name__}: missing {sorted(missing)[:5]}, "
            f"unknown {sorted(unknown)[:5]} ({len(missing)} and {len(unknown)} in all)"
        )


def copy_companions(source: Path, folder: Path, warnings: Warnings) -> None:
    """Copy tokenizer, chat template, generation config and custom code as the trainer saved them, byte for byte.

    Args:
        source: the checkpoint's config, tokenizer and code.
    """
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
    if not (source / GENERATION_FILE).exists():
        warnings.add(f"the checkpoint has no {GENERATION_FILE}: it was made from the model's config")
    if not list(folder.glob("tokenizer*")):
        warnings.add("the checkpoint has no tokenizer: the model is written without one")
