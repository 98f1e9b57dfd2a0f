"""One conversion from end to end: find, verify, merge, cast, write, compare, publish."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from opd.convert.card import make_record, write_card
from opd.convert.dtypes import BaseDtypes, DtypeMode, main_dtype, plan_dtypes, read_base
from opd.convert.export import MAX_SHARD_SIZE, copy_companions, merge, write_model
from opd.convert.merger import ShardMerger
from opd.convert.reporter import Reporter
from opd.convert.source import Origin, bring_here, find_source
from opd.convert.target import choose_target
from opd.convert.verify import Verification, verify
from opd.experiment.algorithm import Convert

# Downloads and copies: a hidden folder in the one that is written, gone before that is published.
_SCRATCH = ".opd-convert-"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What was written where; `record` is the content of its conversion.json."""

    target: str
    record: Mapping[str, Any]
    verification: Verification | None


def convert_checkpoint(
    options: Convert,
    *,
    max_shard_size: str | int = MAX_SHARD_SIZE,
) -> Conversion:
    """Turn a checkpoint into a Hugging Face folder that holds exactly its weights, after one cast.

    Raises:
        IncompleteCheckpoint: files are missing or not as the manifest says; none of them was loaded.
        ConvertError: the checkpoint cannot become this folder; nothing is left of it.
        BadRequest: the request cannot be followed.
        StoreError, OSError: a store or disk failed.
    """
    reporter = Reporter()
    source = find_source(options.checkpoint, reporter)
    target = choose_target(options.target, source.origin.checkpoint)
    mode, base = _settle_dtype(options, source.origin, reporter)
    with target.staging() as folder, tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
        shards = bring_here(source, Path(scratch), reporter)
        with _no_transformers_bars():
            merger = ShardMerger(
                shards.actor_dir,
                huggingface_dir=shards.huggingface_dir,
                world_size=shards.world_size,
                trust_remote_code=options.trust_remote_code,
            )
            dtypes = plan_dtypes(mode, merger.dtypes(), base)
            written = _write(folder, merger, dtypes, reporter, max_shard_size)
            copy_companions(shards.huggingface_dir, folder, base.folder if base else None, reporter)
            verification = _verify_if_asked(options, folder, merger, dtypes, reporter)
        record = make_record(
            source.origin,
            mode=mode,
            dtypes={name: dtypes[name] for name in written},
            num_parameters=sum(merger.num_elements()[name] for name in written),
            world_size=shards.world_size,
            base_model=options.base_model or source.origin.model_path,
            verification=verification,
            warnings=reporter.warnings,
        )
        write_card(folder, record, verification)
    reporter.say(f"done: {target.url}")
    return Conversion(target=target.url, record=record, verification=verification)


def _write(
    folder: Path,
    merger: ShardMerger,
    dtypes: Mapping[str, torch.dtype],
    reporter: Reporter,
    max_shard_size: str | int,
) -> list[str]:
    """Merge, cast and write the weights; the names that were written. The merged copy is freed on return."""
    dtype = main_dtype(dtypes, merger.num_elements())
    reporter.say(
        f"merging {len(dtypes)} tensors, stored on {merger.world_size} ranks, to {str(dtype).removeprefix('torch.')}"
    )
    if merger.num_adapted:
        reporter.say(f"adding the LoRA student's adapters to {merger.num_adapted} of them")
    state = merge(merger, dtypes, reporter)
    reporter.say("writing safetensors")
    return write_model(folder, merger, state, dtype=dtype, max_shard_size=max_shard_size)


def _settle_dtype(options: Convert, origin: Origin, reporter: Reporter) -> tuple[DtypeMode, BaseDtypes | None]:
    """The dtype mode and the base model's dtypes it follows, if any; read before any large file is touched.

    A checkpoint that plain verl saved says nothing of the model it began as: it is written as verl's own merger does.
    """
    if options.dtype != "base":
        return options.dtype, None
    if options.base_model is not None:
        return "base", read_base(options.base_model)
    if origin.model_path is None:
        reporter.warn(
            f"dtype base: {origin.checkpoint} lies outside a run directory, so that its base model is not known; the "
            "weights are written in bf16, as verl's own merger does. Name the base with convert.base_model "
            "(--base-model) to follow its dtypes, or choose dtype checkpoint to keep the trainer's"
        )
        return "bf16", None
    return "base", read_base(origin.model_path, origin.model_revision)


def _verify_if_asked(
    options: Convert, folder: Path, merger: ShardMerger, dtypes: Mapping[str, torch.dtype], reporter: Reporter
) -> Verification | None:
    if not options.verify:
        reporter.warn("the written model was not compared with the checkpoint (verify: false)")
        return None
    reporter.say("comparing the written model with the checkpoint")
    verification = verify(folder, merger, dtypes)
    reporter.say(verification.describe())
    return verification


@contextlib.contextmanager
def _no_transformers_bars() -> Iterator[None]:
    """Without the bars of transformers between our own lines."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()
