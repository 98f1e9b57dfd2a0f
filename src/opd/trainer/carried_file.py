"""The file of a step's checkpoint that holds the rows which are on their way under `rollout.schedule: carry`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opd.errors import CheckpointError
from opd.rollout.carry import Carry

CHECKPOINT_FILE = "carried.json"


def save(carry: Carry, folder: Path) -> None:
    """Save with a step's checkpoint."""
    (folder / CHECKPOINT_FILE).write_text(json.dumps(carry.state()))


def load(carry: Carry, folder: Path) -> None:
    """Go on with what `save` saved.

    Raises:
        CheckpointError: the file is not there, or is no such file. OSError: the disk fails now, which says nothing about the checkpoint.
    """
    path = folder / CHECKPOINT_FILE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        carry.restore(state)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{path} is no file of rollout.schedule carry ({why}); resume from an earlier checkpoint"
        ) from error
