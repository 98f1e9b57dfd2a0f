"""Which shard files a checkpoint must have, told from names alone: one a rank, of one world size, without a gap."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

CONFIG_FILE = "fsdp_config.json"
LORA_FILE = "lora_train_meta.json"
HUGGINGFACE_FOLDER = "huggingface"
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def shard_name(world_size: int, rank: int) -> str:
    """verl's name of one rank's weights."""
    return f"model_world_size_{world_size}_rank_{rank}.pt"


def ranks_by_world_size(names: Iterable[str]) -> dict[int, set[int]]:
    """The shards among some file names: the ranks that are there, by world size."""
    found: dict[int, set[int]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    return found


def settle_world_size(names: Iterable[str], config: bytes | None) -> tuple[int, list[str]]:
    """How many shards make up the model, and every reason why they cannot be merged.

    Args:
        names: the files of the checkpoint's actor folder.
        config: the content of verl's fsdp_config.json, None where there is none.

    Returns:
        The world size (0 if it cannot be told), and one line a problem: no shards, a rank that is missing, several
        world sizes without a config to choose by.
    """
    found = ranks_by_world_size(names)
    if not found:
        return 0, ["there is no model_world_size_*_rank_*.pt: only checkpoints of verl's FSDP trainer can be converted"]
    if config is not None:
        try:
            world_size = int(json.loads(config)["world_size"])
        except (ValueError, KeyError, TypeError) as error:
            return 0, [f"{CONFIG_FILE} does not say the world size: {type(error).__name__}: {error}"]
    elif len(found) == 1:
        (world_size,) = found
    else:
        return 0, [
            f"shards of world sizes {sorted(found)} and no {CONFIG_FILE} that says which of them belong together"
        ]
    missing = sorted(set(range(world_size)) - found.get(world_size, set()))
    return world_size, [f"{shard_name(world_size, rank)} is missing (world size {world_size})" for rank in missing]
