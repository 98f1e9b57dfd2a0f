"""A quickstart's measurements: estimates with standard errors as a table and as JSON, and the picture of the learning curve."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opd.evaluation.estimators import Estimate

_BLUE, _ORANGE, _GREY, _GREEN = "#2b6cb0", "#dd6b20", "#718096", "#2f855a"
_SECONDS = {"start-up": "startup_seconds", "training": "train_seconds", "in all": "wall_seconds"}


def share(num_right: float, num_all: int) -> Estimate:
    """Return a share with its binomial standard error."""
    mean = num_right / num_all
    return Estimate(mean, math.sqrt(mean * (1 - mean) / num_all))


class Report(NamedTuple):
    """The measurements of a finished run.

    Attributes:
        columns: by title the estimates of each model, by its label.
        facts: further entries of `result.json`.
        heldout: held-out accuracy by training step, for the picture.
        teacher: the teacher's held-out accuracy.
        title: of the picture.
        notes: lines under the table.
    """

    columns: Mapping[str, Mapping[str, Estimate]]
    facts: Mapping[str, Any]
    heldout: Sequence[tuple[int, float]]
    teacher: float
    title: str
    notes: Sequence[str]


def print_report(report: Report, result: Mapping[str, Any], picture: Path) -> None:
    """Print the table, its notes and the times."""
    print("\n" + f"{'':24s}" + "".join(f"{title:>24s}" for title in report.columns))
    for label in next(iter(report.columns.values())):
        found = (column.get(label) for column in report.columns.values())
        cells = (f"{one.value:.3f} ± {one.standard_error:.3f} s.e." if one else "" for one in found)
        print(f"{label:24s}" + "".join(f"{cell:>24s}" for cell in cells))
    seconds = [f"{name} {result[key]:.0f} s" for name, key in _SECONDS.items()]
    print(*report.notes, f"{result['steps']} steps; {', '.join(seconds)}", sep="\n")
    print(f"learning curve: {picture}\nmodel: {picture.parent / 'model'}")


def save_learning_curve(path: Path, rows: Sequence[Mapping[str, Any]], report: Report) -> None:
    """Draw accuracy (held-out greedy, and of the training rollouts) and divergence by step, one above the other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    train = [row for row in rows if "opd/loss" in row]
    rolled = [row["opd/accuracy"] for row in train]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 5.6), sharex=True, height_ratios=(3, 2), constrained_layout=True
    )
    top.axhline(report.teacher, color=_GREEN, linestyle="--", linewidth=1, label="teacher, held-out")
    top.plot(_steps(train), rolled, color=_GREY, linewidth=1, alpha=0.8,
             label="student's rollouts (temperature 1)")  # fmt: skip
    top.plot(*zip(*report.heldout, strict=True), color=_BLUE, marker="o", linewidth=2,
             label="student, held-out (greedy)")  # fmt: skip
    highest = max(report.teacher, *rolled, *(accuracy for _, accuracy in report.heldout))
    top.set(ylabel="accuracy", ylim=(0, min(1.04, 1.3 * highest + 0.02)))
    top.set_title(report.title, loc="left", fontsize=11)
    top.legend(loc="lower right", frameon=False, fontsize=9)
    bottom.plot(_steps(train), [row["opd/loss"] for row in train], color=_ORANGE, linewidth=1.5, label="divergence")
    bottom.plot(_steps(train), [row["opd/entropy"] for row in train], color=_GREY, linewidth=1, label="student entropy")
    bottom.set(xlabel="training step", ylabel="nats a token")
    bottom.set_ylim(bottom=0)
    bottom.legend(loc="upper right", frameon=False, fontsize=9)
    for axis in (top, bottom):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _steps(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [int(row["step"]) for row in rows]
