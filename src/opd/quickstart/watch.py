"""A command's lines, and the picture of the learning curve."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opd.quickstart.report import Report

_BLUE, _ORANGE, _GREY, _GREEN = "#2b6cb0", "#dd6b20", "#718096", "#2f855a"


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


# The lines our own logger writes; verl's and Ray's stay in the log file.
SHOWN = re.compile(r"^(?:[█░]+ step |validation at step |starting |resuming |asked to end|saved step |opd\.)")


def watch(command: list[str], log: Path) -> int:
    """Run `command` and return its exit code; its output goes to `log`, the readable lines also to stdout.

    A signal that ends this call early (Ctrl-C, SIGTERM) is passed on to the command first, which then saves and cleans up.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with log.open("w") as file:
            # A session of its own: the terminal's Ctrl-C reaches this process only, which passes it on once.
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    file.write(line)
                    _show(line)
            except BaseException:
                process.terminate()
                for line in process.stdout:  # it still talks while it saves
                    file.write(line)
                    _show(line)
                raise
            finally:
                process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    return process.returncode


def _show(line: str) -> None:
    if SHOWN.match(line):
        sys.stdout.write(line)
        sys.stdout.flush()
