"""The curves of a report: what is thinned keeps its extremes, what is packed is what was logged, and a browser draws it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest
import websocket

from opd.runs import origin
from opd.runs.origin import file_key
from opd.store.local import LocalStore
from opd.store.opening import open_store
from opdctl.report import assets, chart_data
from opdctl.report.chart_data import OTHER, grid_of, panels_of, thin
from opdctl.report.provenance import provenance, teacher_models, trained_models
from opdctl.report.side_by_side import Cell, beside
from opdctl.report.steps import step_time
from opdctl.runs.gather import gather
from opdctl.runs.targets import RunPlace

DOCUMENT = "document.documentElement?.outerHTML ?? ''"  # none for a moment, as the page replaces the empty one
HOSTILE = "</script><script>document.title='PWNED'</script><b>"


def charts_of(page: Path) -> dict[str, Any]:
    """What the page's script gets, its charts by title."""
    [packed] = re.findall(r'id="chart-data">([^<]*)<', page.read_text())
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    return data | {"charts": {chart["title"]: chart for chart in data["charts"]}}


def test_a_bucket_keeps_its_lowest_and_highest_value_in_their_order_and_its_mean() -> None:
    steps = np.arange(1, 11)
    grid = grid_of(steps, max_buckets=3)
    assert (grid.firsts.tolist(), grid.lasts.tolist(), grid.width) == ([1, 5, 9], [4, 8, 10], 4)
    found = thin(grid, steps, np.array([0, 9, -2, 1, 5, 5, 5, 5, 3, 1e300]))
    assert found.first.tolist() == [9, 5, 3]
    assert found.second.tolist() == [-2, 5, 3], "what no axis can hold is left out"
    assert found.mean.tolist() == [2, 5, 3]


def test_a_run_without_values_in_a_bucket_has_a_gap_there() -> None:
    grid = grid_of(np.arange(1, 9), max_buckets=4)
    found = thin(grid, np.array([1, 7]), np.array([1.0, 2.0]))
    assert np.isnan(found.mean).tolist() == [False, True, True, False]


def test_every_logged_metric_has_a_chart_and_the_known_ones_come_first() -> None:
    names = [
        "val-core/math/acc/mean@4",
        "val-core/math/acc/mean@4/stderr",
        "opd/lr",
        "opd/loss",
        "timing_s/gen",
        "step",
        "time",
    ]
    panels = [panel for panel in panels_of(names) if set(panel.metrics) & set(names)]
    assert [panel.title for panel in panels] == [
        "math mean@4", "Loss", "Learning rate", "timing_s/gen", "val-core/math/acc/mean@4/stderr",
    ]  # fmt: skip
    assert [panel.section == OTHER for panel in panels] == [False, False, False, True, True]


def test_the_page_holds_what_was_logged_and_seeds_belong_together(inside: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    for name, seed in (("a1", 1), ("a2", 2), ("b", 1)):
        spec = {"kind": "opd", "seed": seed, "actor": {"learning_rate": 1.0 if name != "b" else 2.0}}
        values = {
            step: {"opd/loss": 1 / step + seed, "opd/accuracy": 0.5, "mine/own": 1e-9 * step} for step in (1, 2, 3)
        }
        make_run(name, attempts=[values], spec=spec)
    done = inside("report", "a1", "a2", "b", "--store", store)
    assert done.returncode == 0, done.stderr
    data = charts_of(tmp_path / "report.html")
    assert data["runs"] == [{"name": "a1", "group": 0}, {"name": "a2", "group": 0}, {"name": "b", "group": 1}]
    assert data["groups"] == ["a1 (+1 seeds)", "b"]
    loss = data["charts"]["Loss"]
    assert (loss["from"], loss["width"]) == ([1, 2, 3], 1)
    assert [line["m"] for line in loss["lines"]] == [[2.0, 1.5, 1.3333], [3.0, 2.5, 2.3333], [2.0, 1.5, 1.3333]]
    assert data["charts"]["Accuracy of the training answers"]["lines"][0]["m"] == [50, 50, 50]
    assert data["charts"]["mine/own"]["lines"][0]["m"] == [1e-9, 2e-9, 3e-9]
    html = (tmp_path / "report.html").read_text()
    assert (
        "<code>actor.learning_rate</code></td><td><code>1.0</code></td><td><code>1.0</code></td><td><code>2.0</code>"
        in html
    )


def test_the_base_of_a_whole_store_is_the_best_that_has_finished(inside: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    for number, (name, result) in enumerate(
        {"a-crashed": None, "b-good": {"steps": 1}, "c-better": {"steps": 1}}.items()
    ):
        spec = {"kind": "opd", "seed": 1, "actor": {"learning_rate": float(number)}}
        make_run(name, attempts=[{1: {"opd/loss": 1.0, "opd/accuracy": 0.1 * number}}], spec=spec, result=result)
    assert inside("report", "--store", store).returncode == 0
    html = (tmp_path / "report.html").read_text()
    assert "Differences to c-better</h2>" in html
    assert "beyond 1.96" not in html
    assert [run["name"] for run in charts_of(tmp_path / "report.html")["runs"]] == ["c-better", "a-crashed", "b-good"]


def test_a_run_tells_how_each_attempt_ended_and_what_its_gpus_cost(make_run: Callable, store: Path) -> None:
    spec = {
        "kind": "opd",
        "seed": 1,
        "device": "cuda",
        "trainer": {"nnodes": 2, "gpus_per_node": 8, "loggers": ["console", "wandb"]},
    }
    make_run("r", attempts=[{1: {"opd/loss": 1.0}}, {2: {"opd/loss": 1.0}}], spec=spec, result={"steps": 2})
    root = open_store(store)
    (store / "r" / file_key(2)).write_text(
        '{"version": "0.1.0", "commit": "0123456789abcdef0123-dirty", "image": "i@sha256:1"}'
    )
    [run] = gather([RunPlace(run_id="r", store=root.child("r"))], folder=store / "cache")
    [found] = provenance([run])
    assert [line.end for line in found.attempts] == ["stopped", "finished"]
    assert found.gpus == "2 × 8"
    assert (found.commit, found.origin["image"]) == ("0.1.0 (0123456789ab-dirty)", "i@sha256:1")
    assert found.trackers == [("wandb opd/r", "")]
    hour = [replace(line, started_at_s=100.0, last_sign_s=3700.0) for line in found.attempts]
    assert replace(found, attempts=tuple(hour)).gpu_hours == 32


def test_a_run_tells_what_each_attempt_computed_on_and_where_its_trackers_are(inside: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    spec = {"kind": "opd", "trainer": {"nnodes": 2, "gpus_per_node": 8, "loggers": ["wandb", "mlflow"]}}
    make_run("r", attempts=[{1: {"opd/loss": 1.0}}] * 3, spec=spec)
    url = "https://wandb.example/team/opd/runs/r"
    for attempt, devices, trackers in (
        (1, {"NVIDIA A100": 16}, {"wandb": url}),
        (2, {"NVIDIA H200": 8, "<b>": 8}, {"mlflow": "javascript:alert(1)"}),
    ):
        origin.add(LocalStore(store / "r"), attempt, devices=Counter(devices).elements(), trackers=trackers)
    root = open_store(store)
    [run] = gather([RunPlace(run_id="r", store=root.child("r"))], folder=store / "cache")
    [found] = provenance([run])
    assert [found.devices(attempt) for attempt in (1, 2, 3)] == ["16 × NVIDIA A100", "8 × <b>, 8 × NVIDIA H200", ""]
    assert found.gpus == "8 × <b>, 8 × NVIDIA H200"
    assert found.trackers == [("wandb opd/r", url), ("mlflow opd", "")]
    assert inside("report", "r", "--store", store).returncode == 0
    html = (tmp_path / "report.html").read_text()
    assert f'<a href="{url}" rel="noreferrer">wandb opd/r</a>, mlflow opd</td>' in html
    assert "<td>8 × &lt;b&gt;, 8 × NVIDIA H200</td>" in html


@pytest.mark.parametrize(
    ("spec", "trained", "teachers"),
    [
        ({"kind": "eval"}, "", []),
        ({"actor": {}, "teacher": {"path": "t"}}, "all weights", ["t"]),
        (
            {"actor": {}, "model": {"lora": {"rank": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]}}},
            "LoRA, rank 8, alpha 16 (q_proj, v_proj)",
            [],
        ),
        (
            {
                "actor": {},
                "teachers": {"b": {"path": "u"}, "a": {"path": "t"}},
                "route": {"blends": {"c": {"form": "sum", "weights": {"b": 1.0, "a": 2.0}}}},
            },
            "all weights",
            ["a: t", "b: u", "c: sum of 2.0 a + 1.0 b"],
        ),
        (
            {"actor": {}, "model": "x", "teachers": {"a": 3}, "route": {"blends": {"c": []}}},
            "all weights",
            ["a: –", "c: mixture of "],
        ),
    ],
)
def test_what_is_trained_and_who_teaches_is_told_of_any_spec(spec, trained, teachers) -> None:
    assert (trained_models(spec), teacher_models(spec)) == (trained, teachers)


def test_the_report_tells_adapters_and_teachers(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    lora = {"rank": 8, "alpha": 16, "target_modules": ["all-linear"]}
    make_run("r", spec={"kind": "opd", "actor": {}, "model": {"lora": lora}, "teachers": {"a": {"path": "<t>"}}})
    assert inside("report", "r", "--store", store).returncode == 0
    html = (tmp_path / "report.html").read_text()
    assert "<td>LoRA, rank 8, alpha 16 (all-linear)</td>" in html
    assert "a: &lt;t&gt;</td>" in html


def test_texts_stand_beside_each_other_by_what_they_answer() -> None:
    cell = Cell(about="", prompt="p", response="r")
    found = beside("t", {"step 1": {1: cell, 2: cell}, "step 9": {2: cell}})
    assert found.rows == ((cell, cell), (cell, None)), "what both have comes first"
    apart = beside("t", {"step 1": {1: cell}, "step 9": {2: cell, 3: cell}})
    assert apart.rows == ((cell, cell), (None, cell)), "training never asks twice: the first of each step"


def test_digits_tell_small_changes_of_large_values_apart() -> None:
    assert chart_data._numbers(np.array([1e6, 1e6 + 1, np.nan])) == "[1000000,1000001,null]"


def test_more_values_than_a_page_may_have_are_thinned_and_rare_metrics_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chart_data, "MAX_VALUES", 3000)
    shown, other = panels_of(["x"])[0], panels_of(["x"])[-1]
    steps = {shown: np.arange(100), other: np.arange(100)}
    assert chart_data._max_buckets(steps, {shown: 1500, other: 1500}) == {shown: 100, other: 100}
    # 3000 x 0.75 / 3 a bucket / 16 lines = 46 buckets; of the others' share 15 would be left, too few.
    assert chart_data._max_buckets(steps, {shown: 1600, other: 1600}) == {shown: 46, other: 0}


def test_each_validation_set_has_a_title_of_its_own() -> None:
    names = [f"val-core/{source}/acc/mean@4" for source in ("openai/gsm8k", "openai/math", "travel")]
    assert [panel.title for panel in panels_of(names)[:3]] == [
        "openai/gsm8k mean@4",
        "openai/math mean@4",
        "travel mean@4",
    ]


def test_the_parts_of_a_step_add_up_to_it() -> None:
    table = pa.table({
        "step": [1, 2], "timing/step_s": [10.0, 10.0], "timing_s/gen": [4.0, 4.0], "timing_s/update_actor": [5.0, 5.0],
        "timing/teacher_s": [1.0, 1.0], "timing/student_s": [3.0, 3.0], "timing_s/save_checkpoint": [None, 1.0],
    })  # fmt: skip
    found = step_time(table)
    assert found is not None
    assert {part.name: part.seconds for part in found.parts} == {
        "rollout": 4.0, "teacher": 1.0, "student": 3.0, "other update": 1.0, "checkpoint": 0.5, "rest": 0.5,
    }  # fmt: skip
    assert sum(part.share for part in found.parts) == pytest.approx(100)
    assert step_time(pa.table({"step": [1], "opd/loss": [1.0]})) is None


def test_a_validation_that_verl_measures_beside_the_step_takes_its_time_and_leaves_the_rest() -> None:
    table = pa.table({
        "step": range(1, 11), "timing_s/step": [10.0] * 10, "timing_s/gen": [6.0] * 10, "timing_s/testing": [None] * 9 + [60.0],
    })  # fmt: skip
    found = step_time(table)
    assert found is not None
    assert found.seconds == pytest.approx(16.0)
    assert {part.name: part.seconds for part in found.parts} == pytest.approx(
        {"rollout": 6.0, "validation": 6.0, "rest": 4.0}
    )


def test_the_band_of_seeds_loses_no_spike_of_neighbouring_steps_that_are_drawn_as_one() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("BANDS OF THINNED CURVES UNTESTED: no node on PATH")
    seeds = [
        {"run": 0, "m": [1, 2], "a": [0, 3], "b": [9, 1]},
        {"run": 1, "m": [3, None], "a": [4, None], "b": [2, None]},
    ]
    chart = {"width": 2, "from": [1, 3], "to": [2, 4], "lines": [*seeds, {**seeds[0], "run": 2}]}
    calls = [
        f"Chart.content({json.dumps(chart)}, [0, 0, 1], {{pooled: true, smoothing: {weight}}}).lines"
        for weight in (0, 0.5)
    ]
    script = f"{assets.read('chart.js')}\nconsole.log(JSON.stringify([{', '.join(calls)}]))"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=60, check=True)
    (pair, alone), (smoothed, _) = json.loads(done.stdout)
    assert (pair["y"], pair["low"], pair["high"], pair["hasBand"]) == ([2, 2], [0, 1], [9, 3], True)
    assert (alone["y"], alone["low"], alone["high"], alone["hasBand"]) == ([1, 2], [0, 1], [9, 3], True)
    assert (smoothed["low"][0], smoothed["high"][0]) == (1, 3), "smoothed curves are of the means"


def eventually(look: Callable[[], str | None]) -> str:
    """What `look` finds within 90 s."""
    until = time.monotonic() + 90
    while (found := look()) is None:
        assert time.monotonic() < until, "nothing within 90 s"
        time.sleep(0.1)
    return found


def drawn(browser: str, page: Path, profile: Path) -> str:
    """The document of `page` with its first curve on it.

    The browser's --dump-dom would not do: it ends with the scripts, and a curve is drawn by the frame after them, in which
    the browser tells what is in view.
    """
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    port = profile / "DevToolsActivePort"

    def page_address() -> str | None:
        if not port.exists() or "\n" not in (written := port.read_text()):
            return None
        with urlopen(f"http://127.0.0.1:{written.split()[0]}/json/list", timeout=60) as answer:
            return next((tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page"), None)

    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", page.as_uri()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with closing(websocket.create_connection(eventually(page_address), timeout=60, suppress_origin=True)) as tab:

            def with_a_curve() -> str | None:
                tab.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": DOCUMENT}}))
                answer = json.loads(tab.recv())
                document: str = answer["result"]["result"]["value"] if "result" in answer else ""
                return document if "<canvas" in document else None

            return eventually(with_a_curve)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_browser_draws_the_curves_and_runs_nothing_that_a_run_named(inside: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("CURVES IN A BROWSER UNTESTED: no chromium on PATH")
    make_run("r", attempts=[{step: {"opd/loss": 1 / step, HOSTILE: float(step)} for step in (1, 2, 3)}])
    done = inside("report", "r", "--store", store)
    assert done.returncode == 0, done.stderr
    dumped = drawn(browser, tmp_path / "report.html", tmp_path / "profile")
    assert "<title>r</title>" in dumped
    assert 'id="curves-wait" hidden' in dumped
    assert "&lt;/script&gt;&lt;script&gt;" in dumped, "the metric stands in the list of metrics as text"
