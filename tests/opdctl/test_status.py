"""`status`: one run for people on any screen, and for programs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from opdctl.commands import showing
from opdctl.errors import ToolError
from opdctl.kube.errors import ClusterUnreachable
from opdctl.runs.layout import Sheet

from .conftest import SPEC
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
    assert yaml.safe_load(inside("status", "r", "--store", store, "-o", "yaml").stdout).keys() == told.keys()


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("command", ["status r", "collect r", "list", "compare r s"])
def test_a_narrow_screen_shows_everything_within_its_width(
    inside: Callable, make_run: Callable, store: Path, command: str, width: int
) -> None:
    history = [{1: {"opd/loss": 2.0, "val-core/math/acc/mean@1": 0.25}}, {2: {"opd/loss": 1.0}}]
    make_run("r", attempts=history)
    make_run("s", attempts=history, spec={**SPEC, "actor": {"learning_rate": 1e-5}})
    seal_checkpoint(store / "r", 2, {"data.pt": b"abc"})
    done = inside(*command.split(), "--store", store, COLUMNS=str(width))
    assert done.returncode == 0
    assert not re.search(r"\w…|│ *… *│", done.stdout), "a cell is cut short"
    assert max(map(len, done.stdout.splitlines())) <= width
    if command not in ("list", "compare r s"):
        assert "checkpoint" in done.stdout


def shown(sheet: Sheet, width: int) -> list[str]:
    out = io.StringIO()
    Console(width=width, color_system=None, file=out).print(sheet)
    return out.getvalue().splitlines()


def test_a_table_wraps_between_words_and_becomes_blocks_where_even_words_have_no_room() -> None:
    sheet = Sheet(names=("pod", "why"), lines=[("worker-0", "image pull failed twice")], title="pods")
    assert any("worker-0 │ image pull failed twice" in line for line in shown(sheet, 60))
    assert any(re.search("worker-0 │ image pull +│", line) for line in shown(sheet, 26))
    blocks = shown(sheet, 16)
    assert blocks[0] == "pods"
    assert blocks[1].split() == ["pod", "worker-0"]
    assert not any("│" in line or "…" in line for line in blocks)


def test_watching_goes_on_through_a_cluster_that_is_away_but_not_from_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "WATCH_S", 0.0)
    answers: list[object] = ["first", ClusterUnreachable("no answer"), "second", ToolError("gone for good")]
    seen: list[object] = []

    def look() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ToolError, match="gone for good"):
        showing.look_and_show(look, seen.append, is_watching=True, timeout_s=60)
    assert seen == ["first", "second"]
    assert "looking again: no answer" in capsys.readouterr().err
    answers.append(ClusterUnreachable("no answer"))
    with pytest.raises(ClusterUnreachable):
        showing.look_and_show(look, seen.append, is_watching=True, timeout_s=60)
