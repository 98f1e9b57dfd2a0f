"""Texts of models next to each other: rollouts of one run over its steps, answers of several runs to one problem."""

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
MAX_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Text:
    """One answer; `is_right` is None where only a score is known."""

    about: str
    prompt: str
    response: str
    is_right: bool | None = None


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of answers; None means that a column has no answer for the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Text | None, ...], ...]


def text_table(title: str, columns: Mapping[str, Mapping[Any, Text]], *, max_rows: int = MAX_ROWS) -> TextTable:
    """Return a table of columns, each a mapping from a problem to an answer.

    Rows are the problems that most columns have. Where no two columns share a problem, each shows its first answers.
    """
    counts: dict[Any, int] = {}
    for key in (key for cells in columns.values() for key in cells):
        counts[key] = counts.get(key, 0) + 1
    if len(columns) > 1 and max(counts.values(), default=0) < 2:
        columns = {name: dict(enumerate(cells.values())) for name, cells in columns.items()}
        counts = dict.fromkeys(range(max(map(len, columns.values()), default=0)), 1)
    keys = sorted(counts, key=lambda key: -counts[key])[:max_rows]
    rows = tuple(tuple(cells.get(key) for cells in columns.values()) for key in keys)
    return TextTable(title=title, columns=tuple(columns), rows=rows)


def of_tokens(steps: Sequence[StepTokens]) -> list[TextTable]:
    """Return the kept training rollouts of a distillation."""
    columns = {
        f"step {step.step}": {
            (row.data_index, row.sample, row.turn): _text(
                f"data row {row.data_index} · score {number(row.score)} · {row.num_tokens} tokens", row.prompt, "".join(row.texts)
            )
            for row in step.rows
        }
        for step in steps
        if step.rows
    }  # fmt: skip
    return [text_table("training rollouts", columns)] if columns else []


def of_trajectories(trajectories: Sequence[Trajectory]) -> list[TextTable]:
    """Return the kept conversations of an agent, in training and in validations."""
    found: dict[str, dict[str, dict[Any, Text]]] = {}
    for item in trajectories:
        cells = found.setdefault(item.partition, {}).setdefault(f"step {item.step}", {})
        about = f"{item.data_source} {item.data_index} · score {number(item.score)}"
        response = "".join(segment.text for segment in item.segments)
        cells[item.data_source, item.data_index, item.sample] = _text(about, item.prompt, response)
    return [text_table(f"{partition} rollouts", columns) for partition, columns in found.items()]


def of_answers(by_run: Mapping[str, Sequence[Sample]], *, max_rows: int) -> TextTable:
    """Return the first answers of each run's evaluation, right and wrong answers in turn; of several runs by problem."""
    columns: dict[str, dict[Any, Text]] = {}
    for run_id, samples in by_run.items():
        cells = columns.setdefault(f"{run_id}, step {samples[0].step}", {})
        for sample in samples:
            pred = sample.pred or "none found"
            about = (
                f"{sample.data_source} problem {sample.problem_index} · answer {pred}, expected {sample.ground_truth}"
            )
            answer = _text(about, sample.prompt, sample.response, is_right=sample.acc == 1.0)
            cells.setdefault((sample.data_source, sample.problem_index), answer)
    return text_table("answers of the evaluation", columns, max_rows=max_rows)


def in_turn(samples: Sequence[Sample]) -> list[Sample]:
    """Order answers: right and wrong answers in turn, the first answer to each problem first."""
    ordered = sorted(samples, key=lambda sample: (sample.sample_index, sample.data_source, sample.problem_index))
    right, wrong = ([sample for sample in ordered if (sample.acc == 1.0) is is_right] for is_right in (True, False))
    shared = min(len(right), len(wrong))
    pairs = [sample for pair in zip(right, wrong, strict=False) for sample in pair]
    return pairs + right[shared:] + wrong[shared:]


def _text(about: str, prompt: str, response: str, *, is_right: bool | None = None) -> Text:
    prompt, response = shortened(prompt, MAX_CHARS), shortened(response, MAX_CHARS)
    return Text(about=about, prompt=prompt, response=response, is_right=is_right)
