"""Conversations as a run keeps them for a person to read: one JSON object a line, text and its writer (torch-free)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from opd.agent.dialogue import Dialogue
from opd.experiment.run_config import RunConfig
from opd.runs.run import Run

FOLDER = "trajectories"
"""In the run directory: one file for each step and validation."""
NUM_ANSWERS = 8
"""Problems of a validation whose first answer is kept, in a run without tools."""


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
    """Further values of the reward, such as each constraint."""
    ground_truth: str

    @classmethod
    def of(
        cls, dialogue: Dialogue, output: Any, row: Mapping[str, Any], *, partition: str, sample: int, tokenizer: Any
    ) -> "Trajectory":
        """Return a finished conversation, `output` scored."""
        info = output.extra_fields.get("reward_extra_info") or {}
        return cls(
            partition=partition,
            step=int(row["global_steps"]),
            data_source=str(row["data_source"]),
            data_index=int(row["index"]),
            sample=sample,
            prompt=tokenizer.decode(dialogue.prompt_ids),
            num_prompt_tokens=len(dialogue.prompt_ids),
            segments=list(_segments(dialogue, tokenizer)),
            calls=[[asdict(call) for call in turn.calls] for turn in dialogue.turns],
            ending=dialogue.ending,
            score=float(output.reward_score or 0.0),
            breakdown=_plain(info),
            ground_truth=str(row["reward_model"]["ground_truth"]),
        )

    @classmethod
    def of_answer(cls, row: Any, prompt: Mapping[str, Any], *, step: int, tokenizer: Any) -> "Trajectory":
        """Return a validation's answer without tools: a row of `opd.rollout.rows` to a prompt of the data."""
        prompt_ids, response_ids = row.prompt.tolist(), row.response.tolist()
        return cls(
            partition="validation",
            step=step,
            data_source=row.data_source,
            data_index=row.order.index,
            sample=row.order.sample,
            prompt=tokenizer.decode(prompt_ids),
            num_prompt_tokens=len(prompt_ids),
            segments=[Segment(trained=True, text=tokenizer.decode(response_ids), num_tokens=len(response_ids))],
            calls=[],
            ending="",
            score=row.score,
            breakdown=_plain(row.info),
            ground_truth=str((prompt.get("reward_model") or {}).get("ground_truth", "")),
        )


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if isinstance(value, str | int | float | bool)}


def _segments(dialogue: Dialogue, tokenizer: Any) -> Iterator[Segment]:
    """Yield the response cut where its writer changes."""
    for trained, group in groupby(zip(dialogue.response_ids, dialogue.mask, strict=True), key=lambda pair: pair[1]):
        ids = [token for token, _ in group]
        yield Segment(trained=bool(trained), text=tokenizer.decode(ids), num_tokens=len(ids))


def file_key(partition: str, step: int) -> str:
    """Return the key of a batch's conversations in the run directory."""
    return f"{FOLDER}/{partition}-{step:06d}.jsonl"


def to_lines(trajectories: Iterable[Trajectory]) -> bytes:
    """Return the file's content: readable in any script, and any text comes back from `from_lines` as it was."""
    lines = "".join(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in trajectories)
    # A lone surrogate has no UTF-8; the handler writes it as JSON's own escape of it.
    return lines.encode(errors="backslashreplace")


def from_lines(data: bytes) -> list[Trajectory]:
    """Return the conversations of a file.

    Raises:
        ValueError: a line is no conversation.
    """
    # Only "\n" ends a line: str.splitlines also cuts at U+2028, U+2029 and U+0085, which JSON allows in a text.
    try:
        records = [json.loads(line) for line in data.removesuffix(b"\n").split(b"\n")]
        return [Trajectory(**item | {"segments": [Segment(**part) for part in item["segments"]]}) for item in records]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"a line is no conversation: {type(error).__name__}: {error}") from error


def num_kept(ours: RunConfig) -> int:
    """Return the conversations of a batch that a run keeps; none in a run without tools."""
    return 0 if ours.agent is None else ours.agent.num_kept_trajectories


def keep_trajectories(run: Run, ours: RunConfig, trajectories: Iterable[Trajectory]) -> None:
    """Write one file for each partition and step; each rollout process kept as many as the run is to keep."""
    ordered = sorted(trajectories, key=lambda item: (item.partition, item.step, item.data_index, item.sample))
    batches = groupby(ordered, key=lambda item: (item.partition, item.step))
    run.keep({file_key(*batch): to_lines(list(group)[: num_kept(ours)]) for batch, group in batches})
