"""Writes the merged weights and everything a user of the model needs beside them into a Hugging Face folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import init_empty_weights
from transformers import PreTrainedModel
from verl.model_merger.output_validation import validate_hf_model_output
from verl.utils.transformers_compat import drop_tied_target_keys

from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger
from opd.convert.reporter import Reporter

# Files of this size load in parallel and can be fetched again one by one.
MAX_SHARD_SIZE = "5GB"
GENERATION_FILE = "generation_config.json"
# Written anew.
_NOT_COPIED = ("config.json", "README.md")


def empty_model(merger: ShardMerger, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint's model with parameters on the meta device and its real buffers."""
    with init_empty_weights():
        model: PreTrainedModel = merger.get_transformers_auto_model_class().from_config(
            merger.model_config, dtype=dtype, trust_remote_code=merger.config.trust_remote_code
        )
    return model


def merge(merger: ShardMerger, dtypes: Mapping[str, torch.dtype], reporter: Reporter) -> dict[str, torch.Tensor]:
    """Every tensor whole and in its target dtype.

    Raises:
        ConvertError: a value is not finite, in the checkpoint or after the cast.
    """
    names = merger.names()
    state = {}
    with reporter.bar("merging", len(names)) as advance:
        for name in names:
            stored = merger.tensor(name)
            state[name] = stored.to(dtypes[name])
            if not torch.isfinite(state[name]).all():
                where = f"after the cast to {dtypes[name]}" if torch.isfinite(stored).all() else "in the checkpoint"
                raise ConvertError(f"{name} holds values that are not finite {where}")
            advance(1)
    return state


def write_model(
    folder: Path,
    merger: ShardMerger,
    state: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype,
    max_shard_size: str | int = MAX_SHARD_SIZE,
) -> list[str]:
    """config.json, safetensors files (with an index if there are several) and a generation config; empties `state`.

    Returns:
        The names of the tensors that were written: of tied ones only the first.

    Raises:
        ConvertError: the tensors are not those of the model that the config describes.
    """
    model = empty_model(merger, dtype)
    _drop_tied(state, model)
    _check_names(set(state), model)
    written = sorted(state)
    model.save_pretrained(folder, state_dict=state, max_shard_size=max_shard_size)
    validate_hf_model_output(folder)
    return written


def copy_companions(source: Path, folder: Path, base: Path | None, reporter: Reporter) -> None:
    """Tokenizer, chat template, generation config and custom code as the trainer saved them, byte for byte.

    Args:
        source: the checkpoint's config, tokenizer and code (`LocalShards.huggingface_dir`).
        base: the base model's folder, whose generation config is taken where the checkpoint has none.
    """
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
    if not (source / GENERATION_FILE).exists():
        found = base / GENERATION_FILE if base is not None else None
        if found is not None and found.exists():
            shutil.copyfile(found, folder / GENERATION_FILE)
        else:
            reporter.warn(f"the checkpoint has no {GENERATION_FILE}: it was made from the model's config")
    if not list(folder.glob("tokenizer*")):
        reporter.warn("the checkpoint has no tokenizer: the model is written without one")


def _drop_tied(state: dict[str, torch.Tensor], model: PreTrainedModel) -> None:
    """Remove the second names of tied weights, as transformers wants it; both names must have held the same values."""
    before = dict(state)
    drop_tied_target_keys(state, model, model.config)
    names_by_id: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_by_id.setdefault(id(parameter), []).append(name)
    for names in names_by_id.values():
        kept = [name for name in names if name in state]
        for name in set(names) & (set(before) - set(state)):
            if not torch.equal(before[name], before[kept[0]]):
                raise ConvertError(
                    f"config.json says tie_word_embeddings, but the checkpoint's {name} and {kept[0]} differ: the trainer "
                    "did not train them as one; set tie_word_embeddings to false in the checkpoint's huggingface/config.json"
                )


def _check_names(names: set[str], model: PreTrainedModel) -> None:
    tied = set(model.all_tied_weights_keys)
    expected = set(model.state_dict())
    missing, unknown = expected - names - tied, names - expected
    if missing or unknown:
        raise ConvertError(
            f"the checkpoint does not hold the weights of its {type(model).__name__}: missing {sorted(missing)[:5]}, "
            f"unknown {sorted(unknown)[:5]} ({len(missing)} and {len(unknown)} in all)"
        )
