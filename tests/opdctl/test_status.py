"""`status`: one run for people on any screen, and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .test_store_commands import seal_checkpoint


def test_status_for_programs_says_what_the_screen_says(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("r", attempts=[{1: {"opd/loss": 2.0}}, {2: {"opd/loss": 1.0}}])
    seal_checkpoint(store / "r", 2, {"data.pt": b"abc"})
    told = json.loads(inside("status", "r", "--store", store, "-o", "json").stdout)
    assert told["run"] == "r"
    assert told["cluster"] is None
    assert (told["store"]["last_step"], told["store"]["loss"], told["store"]["total_steps"]) == (2, 1.0, 4)
    assert [attempt["attempt"] for attempt in told["attempts"]] == [1, 2]
