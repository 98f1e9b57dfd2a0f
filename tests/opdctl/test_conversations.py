"""The report's link to a run's conversations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opd.agent.trajectories import Segment, Trajectory, file_key, to_lines


@pytest.mark.slow
def test_an_agent_runs_report_links_to_a_page_of_its_conversations(
    call: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    make_run("agent", attempts=[{1: {"opd/loss": 1.0}}])
    make_run("other", attempts=[{1: {"opd/loss": 1.0}}])
    talk = Trajectory(
        partition="train", step=1, data_source="travel_en", data_index=0, sample=0, prompt="How much?",
        num_prompt_tokens=2, segments=[Segment(trained=True, text="静州 <b>", num_tokens=3)], calls=[[]], ending="answered",
        score=1.0, breakdown={}, ground_truth="42",
    )  # fmt: skip
    path = store / "agent" / file_key("train", 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(to_lines([talk]))
    done = call("report", "agent", "other", "--store", store, "-f", "report.html")
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "report.html").read_text()
    assert html.count("-conversations-") == 1
    assert '<a href="report-conversations-1.html">agent: ' in html
    page = (tmp_path / "report-conversations-1.html").read_text()
    assert "静州 &lt;b&gt;" in page
    assert not (tmp_path / "report-conversations-2.html").exists()
