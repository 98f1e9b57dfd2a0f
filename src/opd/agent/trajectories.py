"""Conversations as a run keeps them for a person to read: one JSON object a line, text and who wrote it (torch-free)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

FOLDER = "trajectories"
"""In the run directory: one file for each step and validation."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive tokens of one writer."""

    trained: bool
    """Sampled by the model, so trained on; False for the template's and the tools' tokens."""
    text: str
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One conversation with its score."""

    partition: str
    """`train` or `validation`."""
    step: int
    data_source: str
    data_index: int
    sample: int
    prompt: str
    num_prompt_tokens: int
    segments: Sequence[Segment]
    """The response from its first token to its last."""
    calls: Sequence[Sequence[Mapping[str, Any]]]
    """By turn of the model: the fields of `opd.agent.dialogue.CallRecord`."""
    ending: str
    score: float
    breakdown: Mapping[str, Any]
    """What else the reward said, such as each constraint."""
    ground_truth: str


def file_key(partition: str, step: int) -> str:
    """Return where a batch's conversations are in the run directory."""
    return f"{FOLDER}/{partition}-{step:06d}.jsonl"


def to_lines(trajectories: Iterable[Trajectory]) -> bytes:
    """Return the file's content: readable in any script, and any text comes back from `from_lines` as it was."""
    lines = "".join(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in trajectories)
    # A lone surrogate has no UTF-8; the handler writes it as JSON's own escape of it.
    return lines.encode(errors="backslashreplace")


def from_lines(data: bytes) -> list[Trajectory]:
    """Return the conversations of a file.

    Raises:
        ValueError: a line is no conversation; names it.
    """
    out = []
    names = {field.name for field in fields(Trajectory)}
    # Only "\n" ends a line: str.splitlines also cuts at U+2028, U+2029 and U+0085, which JSON allows in a text.
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else [], start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or set(record) != names:
                raise ValueError(f"a trajectory must have the keys {', '.join(sorted(names))}")
            out.append(Trajectory(**record | {"segments": [Segment(**item) for item in record["segments"]]}))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
    return out
