"""Renders conversations: turns, who wrote each stretch of tokens, calls, and what the reward said; all text escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from itertools import groupby
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.agent.dialogue import ANSWERED
from opd.agent.trajectories import Trajectory
from opd.text import policy, shortened, storable

MAX_SEGMENT_CHARS = 6000
"""A longer stretch keeps its beginning and its end; what is left out is counted."""
PARTITIONS = {"train": "Training", "validation": "Validation"}
# Names of the breakdown that are no constraint.
_SUMMARY = ("score", "acc", "pred", "failed")


def render(title: str, trajectories: Sequence[Trajectory]) -> str:
    """The page as HTML that UTF-8 can hold, with everything inside it; its script only filters what is there."""
    environment = Environment(
        loader=PackageLoader("opd.agent.viewer", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"shortened": partial(shortened, max_chars=MAX_SEGMENT_CHARS), "compact": compact}
    ordered = sorted(trajectories, key=lambda t: (t.partition, t.step, t.data_index, t.sample))
    groups = [
        group(partition, step, list(found))
        for (partition, step), found in groupby(ordered, key=lambda t: (t.partition, t.step))
    ]
    script = (files("opd.agent.viewer") / "page.js").read_text(encoding="utf-8")
    page = environment.get_template("page.html.j2").render(
        title=title, groups=groups, num=len(ordered), script=script, policy=policy([script])
    )
    return storable(page)


def group(partition: str, step: int, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What the template shows of one step's conversations."""
    views = [view(trajectory) for trajectory in trajectories]
    return {
        "title": f"{PARTITIONS.get(partition, partition)}, step {step}",
        "mean_score": fmean(trajectory.score for trajectory in trajectories),
        "num_failed": sum(item["is_failed"] for item in views),
        "talks": views,
    }


def view(trajectory: Trajectory) -> dict[str, Any]:
    """What the template shows of one conversation."""
    calls = [call for turn in trajectory.calls for call in turn]
    num_trained = sum(segment.num_tokens for segment in trajectory.segments if segment.trained)
    num_response = sum(segment.num_tokens for segment in trajectory.segments)
    return {
        "t": trajectory,
        "steps": list(steps(trajectory)),
        "num_calls": len(calls),
        "num_errors": (num_errors := sum(bool(call["error"]) for call in calls)),
        "is_answered": (is_answered := trajectory.ending == ANSWERED),
        "is_failed": num_errors > 0 or not is_answered,
        "num_trained": num_trained,
        "num_masked": num_response - num_trained,
        "share_trained": num_trained / max(num_response, 1),
        "constraints": constraints(trajectory.breakdown),
        "shares": {
            name: trajectory.breakdown[name] for name in ("commonsense", "hard") if name in trajectory.breakdown
        },
        "pred": trajectory.breakdown.get("pred", ""),
    }


def steps(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The response's segments in order, each turn of the model with the calls it made."""
    out: list[dict[str, Any]] = []
    turn = 0
    for segment in trajectory.segments:
        calls: Sequence[Mapping[str, Any]] = ()
        if segment.trained:
            calls = trajectory.calls[turn] if turn < len(trajectory.calls) else ()
            turn += 1
        out.append({"segment": segment, "turn": turn, "calls": calls})
    return out


def constraints(breakdown: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(group, name, satisfied) of each named constraint, such as `hard_budget`."""
    found = []
    for key, value in breakdown.items():
        group, _, name = key.partition("_")
        if name and key not in _SUMMARY and isinstance(value, int | float):
            found.append((group, name.replace("_", " "), float(value) == 1.0))
    return sorted(found)


def compact(arguments: Mapping[str, Any]) -> str:
    """Arguments on one line."""
    return json.dumps(arguments, ensure_ascii=False)
