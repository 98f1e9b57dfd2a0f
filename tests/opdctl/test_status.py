"""`status`: one run for people on any screen, and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opdctl.commands import watching
from opdctl.errors import ToolError
from opdctl.kube.errors import ClusterUnreachable

from .test_store_commands import seal_checkpoint


def test_status_for_programs_says_what_the_screen_says(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("r", attempts=[{1: {"opd/loss": 2.0}}, {2: {"opd/loss": 1.0}}])
    seal_checkpoint(store / "r", 2, {"data.pt": b"abc"})
    told = json.loads(inside("status", "r", "--store", store, "-o", "json").stdout)
    assert told["run"] == "r"
    assert told["cluster"] is None
    assert (told["store"]["last_step"], told["store"]["loss"], told["store"]["total_steps"]) == (2, 1.0, 4)
    assert [attempt["attempt"] for attempt in told["attempts"]] == [1, 2]
    assert told["places"]["checkpoint"] == str(store / "r" / "checkpoints" / "global_step_2")


def test_watching_goes_on_through_a_cluster_that_is_away_but_not_from_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "WATCH_S", 0.0)
    answers: list[object] = ["first", ClusterUnreachable("no answer"), "second", ToolError("gone for good")]
    seen: list[object] = []

    def look() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ToolError, match="gone for good"):
        watching.look_and_show(look, seen.append, is_watching=True, timeout_s=60)
    assert seen == ["first", "second"]
    assert "looking again: no answer" in capsys.readouterr().err
    answers.append(ClusterUnreachable("no answer"))
    with pytest.raises(ClusterUnreachable):
        watching.look_and_show(look, seen.append, is_watching=True, timeout_s=60)
