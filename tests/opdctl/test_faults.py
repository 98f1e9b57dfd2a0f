"""Faults that the trainer's monitor named are shown wherever a run is."""

import json
from collections.abc import Callable
from pathlib import Path

HISTORY = [{1: {"opd/loss": 2.0}, 2: {"opd/loss": 1.0, "fault/lr-zero": 2.0}, 3: {"fault/answers-cut": 3.0}},
           {3: {"opd/loss": 1.0, "fault/answers-cut": 0.0}}]  # fmt: skip


def test_what_the_monitor_named_stands_in_status_report_and_collect(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    make_run("r", attempts=HISTORY)
    inside("report", "r", "--store", store, "-f", tmp_path / "page.html")
    for text in [inside("status", "r", "--store", store).stdout, (tmp_path / "page.html").read_text()]:
        assert "fault since step 2: the learning rate is 0 (lr-zero); look at" in text
        assert "(answers-cut)" not in text, "gone since"
    [run] = json.loads(inside("collect", "r", "--store", store, "-o", "json").stdout)["runs"]
    assert [(fault["name"], fault["since"]) for fault in run["faults"]] == [("lr-zero", 2)]
