"""A batch's conversations with tools: counted where they happen, the first of them kept for a person to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from opd.agent.dialogue import Dialogue
from opd.agent.metrics import AgentCounts
from opd.agent.trajectories import Segment, Trajectory, file_key, to_lines
from opd.experiment.run_config import RunConfig
from opd.rollout.seeds import TRAIN
from opd.runs.run import Run


def num_kept(ours: RunConfig) -> int:
    """Conversations of a batch that a run keeps; none in a run without tools."""
    return 0 if ours.agent is None else ours.agent.num_kept_trajectories


class DialogueKeeper:
    """Counts every conversation of a batch and keeps those with the lowest (data index, sample)."""

    def __init__(self, num_kept: int, tokenizer: Any, partition: str):
        self._num_kept = num_kept
        self._tokenizer = tokenizer
        self._partition = "train" if partition == TRAIN else "validation"
        self._kept: dict[tuple[int, int], Trajectory] = {}
        self.counts = AgentCounts()

    def see(self, dialogue: Dialogue | None, output: Any, row: Mapping[str, Any], sample: int) -> None:
        """Take note of a finished conversation, `output` scored."""
        if dialogue is None:
            return
        self.counts.add(AgentCounts.of(dialogue))
        place = (int(row["index"]), sample)
        if self._num_kept and (len(self._kept) < self._num_kept or place < max(self._kept)):
            self._kept[place] = self._trajectory(dialogue, output, row, sample)
            if len(self._kept) > self._num_kept:
                del self._kept[max(self._kept)]

    def kept(self) -> list[Trajectory]:
        """The kept conversations in the order of the data."""
        return [self._kept[place] for place in sorted(self._kept)]

    def _trajectory(self, dialogue: Dialogue, output: Any, row: Mapping[str, Any], sample: int) -> Trajectory:
        info = output.extra_fields.get("reward_extra_info") or {}
        return Trajectory(
            partition=self._partition,
            step=int(row["global_steps"]),
            data_source=str(row["data_source"]),
            data_index=int(row["index"]),
            sample=sample,
            prompt=self._tokenizer.decode(dialogue.prompt_ids),
            num_prompt_tokens=len(dialogue.prompt_ids),
            segments=list(segments(dialogue, self._tokenizer)),
            calls=[[asdict(call) for call in turn.calls] for turn in dialogue.turns],
            ending=dialogue.ending,
            score=float(output.reward_score or 0.0),
            breakdown={key: value for key, value in info.items() if isinstance(value, str | int | float | bool)},
            ground_truth=str(row["reward_model"]["ground_truth"]),
        )


def segments(dialogue: Dialogue, tokenizer: Any) -> Iterator[Segment]:
    """The response cut where its writer changes."""
    for trained, group in groupby(zip(dialogue.response_ids, dialogue.mask, strict=True), key=lambda pair: pair[1]):
        ids = [token for token, _ in group]
        yield Segment(trained=bool(trained), text=tokenizer.decode(ids), num_tokens=len(ids))


class DialogueLog:
    """Writes kept conversations into the run directory."""

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept

    def write(self, run: Run, trajectories: Iterable[Trajectory]) -> None:
        """One file for each partition and step among them; each rollout process kept as many as the run is to keep."""
        ordered = sorted(trajectories, key=lambda item: (item.partition, item.step, item.data_index, item.sample))
        batches = groupby(ordered, key=lambda item: (item.partition, item.step))
        run.keep({file_key(*batch): to_lines(list(group)[: self._num_kept]) for batch, group in batches})
