"""One conversion from end to end: find, verify, merge, cast, write, compare, publish."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from opd.agent.environments import toy_models
from opd.convert.card import licence_of, make_record, write_card
from opd.convert.errors import ConvertError, Warnings, say
from opd.convert.export import copy_companions, write_model
from opd.convert.merger import ShardMerger
from opd.convert.source import Origin, bring_here, find_source
from opd.convert.target import choose_target, staging
from opd.convert.verify import describe, verify
from opd.experiment.algorithm import Convert
from opd.shapes import Unplannable, read_config


def convert_checkpoint(options: Convert) -> tuple[str, dict[str, Any]]:
    """Turn a checkpoint into a Hugging Face folder that holds exactly its weights, after one cast.

    Returns:
        The folder's path or URL, and the content of its conversion.json.

    Raises:
        CheckpointError: files are missing or not as the manifest says; none of them was loaded.
        ConvertError: the checkpoint cannot become this folder, and nothing is left of it.
        BadRequest: the request cannot be followed.
        StoreError, OSError: a store or disk failed.
    """
    warnings = Warnings()
    source = find_source(options.checkpoint, warnings)
    target = choose_target(options.target, source.origin.checkpoint)
    mode, wanted = _dtype(options, source.origin, warnings)
    transformers_logging.disable_progress_bar()  # between our own lines
    with (
        staging(target) as folder,
        tempfile.TemporaryDirectory(dir=folder, prefix=".opd-convert-") as scratch,
    ):
        actor_dir, companions, world_size = bring_here(source, Path(scratch))
        trusts = options.trust_remote_code
        merger = ShardMerger(actor_dir, huggingface_dir=companions, world_size=world_size, trust_remote_code=trusts)
        stored, sizes = merger.dtypes(), merger.num_elements()
        dtypes = {name: wanted if wanted and dtype.is_floating_point else dtype for name, dtype in stored.items()}
        counts = Counter[torch.dtype]()
        for name, dtype in dtypes.items():
            counts[dtype] += sizes[name] if dtype.is_floating_point else 0
        [(dtype, _)] = counts.most_common(1)  # what config.json says, and transformers loads with
        told = f"merging {len(dtypes)} tensors of {world_size} ranks to {str(dtype).removeprefix('torch.')}"
        adapted = f", adding the LoRA student's adapters to {merger.num_adapted} of them" if merger.num_adapted else ""
        say(told + adapted)
        written = write_model(folder, merger, dtypes, dtype)
        copy_companions(companions, folder, warnings)
        verification = None
        if options.verify:
            say("comparing the written model with the checkpoint")
            verification = verify(folder, merger, dtypes)
            say(describe(verification))
        else:
            warnings.add("the written model was not compared with the checkpoint (verify: false)")
        record = make_record(
            source.origin,
            dtypes=[dtypes[name] for name in written],
            dtype_mode=mode,
            num_parameters=sum(sizes[name] for name in written),
            world_size=world_size,
            base_model=source.origin.model_path,
            licence=licence_of(source.origin.model_path, source.origin.model_revision),
            verification=verification,
            warnings=warnings,
        )
        write_card(folder, record)
    say(f"done: {target.url}")
    return target.url, record


def _dtype(options: Convert, origin: Origin, warnings: Warnings) -> tuple[str, torch.dtype | None]:
    """Return the dtype mode and the dtype of all floating tensors; None means each tensor's own.

    A checkpoint that plain verl saved does not name its base model: it is written as verl's own merger does.
    """
    if options.dtype == "checkpoint":
        return "checkpoint", None
    base = origin.model_path
    if options.dtype == "base" and base is None:
        text = f"dtype base: {origin.checkpoint} is outside a run directory, so its base model is not known"
        warnings.add(f"{text}. The weights are written in bf16; dtype checkpoint keeps the trainer's")
    if options.dtype == "bf16" or base is None:
        return "bf16", torch.bfloat16
    return "base", base_dtype(base, origin.model_revision)


def base_dtype(base: str, revision: str | None = None) -> torch.dtype:
    """Return the dtype in a base model's config.json; raise ConvertError if it says no dtype of torch's."""
    try:
        config = read_config(str(toy_models().get(base, base)), revision=revision)
    except Unplannable as error:
        raise ConvertError(f"base model {error}. Choose dtype checkpoint or bf16") from error
    parts = (config, config.get("text_config") or {})
    name = next((found for part in parts if (found := part.get("dtype") or part.get("torch_dtype"))), None)
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ConvertError(
            f"base model {base} says dtype {name}, which is not one of torch's: choose dtype checkpoint or bf16"
        )
    return dtype
