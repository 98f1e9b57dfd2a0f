"""Lays texts that models wrote side by side: rollouts of one run over its steps, answers of several runs to one problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd.agent.trajectories import Trajectory
from opd.evaluation.samples import Sample
from opd.runs.tokens import StepTokens
from opd.text import shortened
from opdctl.runs.tables import number

MAX_CHARS = 1500
"""Of a prompt or a response."""
MAX_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One text; `is_right` is None where only a score is known."""

    about: str
    prompt: str
    response: str
    is_right: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A table of texts: None where a column has none for the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...]


def beside(title: str, columns: Mapping[str, Mapping[Any, Cell]], *, max_rows: int = MAX_ROWS) -> Beside:
    """A table of columns, each a mapping from what the text answers to the text.

    Rows are what the most columns have. Where no two columns share anything, as in training, each shows its first ones.
    """
    counts: dict[Any, int] = {}
    for cells in columns.values():
        for key in cells:
            counts[key] = counts.get(key, 0) + 1
    if len(columns) > 1 and max(counts.values(), default=0) < 2:
        listed = [list(cells.values()) for cells in columns.values()]
        num_rows = min(max(map(len, listed), default=0), max_rows)
        rows = [tuple(found[i] if i < len(found) else None for found in listed) for i in range(num_rows)]
    else:
        keys = sorted(counts, key=lambda key: -counts[key])[:max_rows]
        rows = [tuple(cells.get(key) for cells in columns.values()) for key in keys]
    return Beside(title=title, columns=tuple(columns), rows=tuple(rows))


def of_tokens(steps: Sequence[StepTokens]) -> list[Beside]:
    """The kept training rollouts of a distillation."""
    columns = {
        f"step {step.step}": {
            (row.data_index, row.sample, row.turn): _cell(
                f"data row {row.data_index} · score {number(row.score)} · {row.num_tokens} tokens", row.prompt, "".join(row.texts)
            )
            for row in step.rows
        }
        for step in steps
        if step.rows
    }  # fmt: skip
    return [beside("training rollouts", columns)] if columns else []


def of_trajectories(trajectories: Sequence[Trajectory]) -> list[Beside]:
    """The kept conversations of an agent, those of training and of validations."""
    found: dict[str, dict[str, dict[Any, Cell]]] = {}
    for item in trajectories:
        cells = found.setdefault(item.partition, {}).setdefault(f"step {item.step}", {})
        about = f"{item.data_source} {item.data_index} · score {number(item.score)}"
        response = "".join(segment.text for segment in item.segments)
        cells[item.data_source, item.data_index, item.sample] = _cell(about, item.prompt, response)
    titles = {"train": "training rollouts", "validation": "validation rollouts"}
    return [beside(titles.get(partition, partition), columns) for partition, columns in found.items()]


def of_answers(by_run: Mapping[str, Sequence[Sample]], *, max_rows: int) -> Beside:
    """Answers of several runs, such as a model's checkpoints, to the same problems: the first to each."""
    columns: dict[str, dict[Any, Cell]] = {}
    for run_id, samples in by_run.items():
        cells = columns.setdefault(f"{run_id}, step {samples[0].step}", {})
        for sample in samples:
            about = f"{sample.data_source} problem {sample.problem_index} · answer {sample.pred or 'none found'}, expected {sample.ground_truth}"
            cell = _cell(about, sample.prompt, sample.response, is_right=sample.acc == 1.0)
            cells.setdefault((sample.data_source, sample.problem_index), cell)
    return beside("the same problems in each run", columns, max_rows=max_rows)


def _cell(about: str, prompt: str, response: str, *, is_right: bool | None = None) -> Cell:
    prompt, response = shortened(prompt, MAX_CHARS), shortened(response, MAX_CHARS)
    return Cell(about=about, prompt=prompt, response=response, is_right=is_right)
