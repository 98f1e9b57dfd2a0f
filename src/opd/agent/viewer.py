"""A page of the conversations that a run kept: turns, who wrote each stretch of tokens, calls, scores (torch-free)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.agent.dialogue import ANSWERED
from opd.agent.trajectories import FOLDER, Trajectory, from_lines
from opd.store.base import Store
from opd.text import policy, shortened, storable

NUM_FILES = 4
"""Files of each partition that a page shows by default."""
MAX_SEGMENT_CHARS = 6000
"""A longer stretch keeps its beginning and its end, and says how much it lacks."""
PARTITIONS = {"train": "Training", "validation": "Validation"}


def load(run: Store, *, num_files: int = NUM_FILES) -> list[Trajectory]:
    """Load the kept conversations of a run.

    Raises:
        StoreError: the store cannot be read. ValueError: a file is damaged; names it.
    """
    out: list[Trajectory] = []
    for key in pick([info.key for info in run.list(FOLDER)], num_files):
        try:
            out += from_lines(run.get(key))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    return out


def pick(keys: Sequence[str], num_files: int) -> list[str]:
    """Return the first and the newest files of each partition, at most `num_files`."""
    partitions: dict[str, list[str]] = {}
    for key in sorted(keys):
        partitions.setdefault(key.rpartition("/")[2].partition("-")[0], []).append(key)
    out = []
    for found in partitions.values():
        newest = found[max(len(found) - num_files, 0) :]
        out += newest if len(found) <= num_files else [found[0], *newest[1:]]
    return out


def render(title: str, trajectories: Sequence[Trajectory]) -> str:
    """Return the page as HTML that UTF-8 can hold, all text escaped, without a script."""
    environment = Environment(
        loader=PackageLoader("opd.agent", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "shortened": partial(shortened, max_chars=MAX_SEGMENT_CHARS),
        "compact": partial(json.dumps, ensure_ascii=False),
    }
    ordered = sorted(trajectories, key=lambda t: (t.partition, t.step, t.data_index, t.sample))
    groups = []
    for (partition, step), found in groupby(ordered, key=lambda t: (t.partition, t.step)):
        talks = [_view(trajectory) for trajectory in found]
        name = f"{PARTITIONS.get(partition, partition)}, step {step}"
        groups.append({"title": name, "mean_score": fmean(talk["t"].score for talk in talks), "talks": talks})
    page = environment.get_template("viewer.html.j2").render(title=title, groups=groups, policy=policy())
    return storable(page)


def _view(trajectory: Trajectory) -> dict[str, Any]:
    """Return what the template shows of one conversation."""
    num_trained = sum(segment.num_tokens for segment in trajectory.segments if segment.trained)
    breakdown = {
        name: value
        for name, value in sorted(trajectory.breakdown.items())
        if name not in ("score", "acc") and value not in ("", None)
    }
    return {
        "t": trajectory,
        "steps": list(_steps(trajectory)),
        "num_trained": num_trained,
        "num_masked": sum(segment.num_tokens for segment in trajectory.segments) - num_trained,
        "num_errors": sum(bool(call["error"]) for turn in trajectory.calls for call in turn),
        "is_answered": trajectory.ending == ANSWERED,
        "breakdown": breakdown,
    }


def _steps(trajectory: Trajectory) -> Iterator[tuple[Any, int, Sequence[Mapping[str, Any]]]]:
    """Yield (segment, turn, calls) in order: each turn of the model comes with its calls."""
    turn = 0
    for segment in trajectory.segments:
        calls: Sequence[Mapping[str, Any]] = ()
        if segment.trained:
            calls = trajectory.calls[turn] if turn < len(trajectory.calls) else ()
            turn += 1
        yield segment, turn, calls
