"""The report's pictures of pass rates and weights: bars by hand, captions, and files that are none."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from opd.evaluation.pass_rates import PASS_RATES_KEY, PassRate, weights_bytes, weights_key, write_pass_rates
from opdctl.report.problems import draw, histogram

HOSTILE = "<script>m"
RATES = [PassRate("a", 0.0, 8, HOSTILE), PassRate("b", 0.25, 8, HOSTILE), PassRate("c", 1.0, 8, HOSTILE)]


def test_a_bar_is_one_number_of_right_answers_as_far_as_they_can_be_told_apart() -> None:
    counts, middles, bars = histogram(np.array([0.0, 0.25, 0.25, 1.0]), 4)
    assert counts.tolist() == [1, 2, 0, 0, 1]
    assert middles.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert bars.tolist() == [0, 1, 1, 4]
    many, places, _ = histogram(np.array([0.5, 0.51, 0.53]), 100)
    assert (len(many), many[10], many[11], places[10]) == (21, 2, 1, 0.5)


def test_bars_that_share_answers_are_equally_full_where_the_pass_rates_are() -> None:
    counts, _, _ = histogram(np.arange(41) / 40, 40)
    assert counts.tolist() == [1, *[2] * 20]


def test_prompts_are_counted_in_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr("opdctl.report.problems.as_curve", lambda title, figure, caption: figures.append(figure))
    draw("Pass rates", pa.table({"pass_rate": [0.0, 0.25, 1.0], "k": [8, 8, 8], "checkpoint": ["hub/m"] * 3}))
    ticks = figures[0].axes[0].get_yticks()
    assert ticks.tolist() == np.round(ticks).tolist()


@pytest.fixture
def weighed(make_run: Callable, store: Path) -> Path:
    """The folder of weights of the run `weighed`, which measured twice; `measured` is an evaluation, `plain` neither."""
    for name in ("weighed", "measured", "plain"):
        make_run(name)
    write_pass_rates(store / "measured" / PASS_RATES_KEY, [*RATES, PassRate("d", 1.0, 4, "hub/m")])
    for step in (1, 4, 9):
        path = store / "weighed" / weights_key(step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(weights_bytes(RATES, [0.0, 3.0, 0.0]))
    return path.parent


def test_a_report_shows_pass_rates_and_the_first_and_last_weights(inside: Callable, weighed: Path, store: Path, tmp_path: Path) -> None:  # fmt: skip
    done = inside("report", "weighed", "measured", "plain", "--store", store)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    titles = ("Pass rates and weights", "Pass rates and weights from step 9 on", "Pass rates")
    assert [page.count(f"<figcaption>{title}</figcaption>") for title in titles] == [1, 1, 1]
    shown = html.unescape(page)
    assert "3 prompts, mean pass rate 41.7 %, 8 answers each by <script>m; 66.7 % of the prompts weigh nothing, the largest weight is 3" in shown  # fmt: skip
    assert "4 prompts, mean pass rate 56.2 %, 4 to 8 answers each by 2 models; never solved: 25.0 %, always: 50.0 %" in shown  # fmt: skip
    assert page.count("Prompts of plain by pass rate") == 0
    assert HOSTILE not in page


def parquet(pass_rate: object, k: object) -> bytes:
    out = io.BytesIO()
    row = {"pass_rate": pass_rate, "k": k, "checkpoint": "m", "weight": 1.0}
    pq.write_table(pa.Table.from_pylist([row]), out)
    return out.getvalue()


NOT_WEIGHTS = {
    "no Parquet": b"PAR1", "empty": weights_bytes([], []), "percent": parquet(50.0, 8), "words": parquet("0.5", 8), "lists": parquet([0.5], 8),
    "of no answer": parquet(0.5, 0), "of less": parquet(0.5, -3), "of endless answers": parquet(0.5, math.inf), "of words": parquet(0.5, "x"),
    "of nothing": parquet(0.5, None),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("content", NOT_WEIGHTS.values(), ids=NOT_WEIGHTS)
def test_a_file_that_is_none_costs_its_picture_and_not_the_report(content: bytes, inside: Callable, weighed: Path, store: Path) -> None:  # fmt: skip
    (weighed / "step-000009.parquet").write_bytes(content)
    done = inside("report", "weighed", "--store", store)
    assert done.returncode == 0, done.stderr
    assert "warning: weighed: its pass rates are left out: " in done.stderr
