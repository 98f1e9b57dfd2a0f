"""The curves of a report, and the origin of its runs."""

import base64
import json
import re
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.programs import need

from opd.runs import origin
from opd.runs.origin import file_key
from opd.store.local import LocalStore
from opd.store.remote import open_store
from opdctl.report.curves import thin
from opdctl.report.page import asset
from opdctl.report.provenance import Origin, num_gpus
from opdctl.runs.find import RunPlace
from opdctl.runs.gather import gather


def packed_in(page: Path) -> str:
    """The data of the page's script."""
    [packed] = re.findall(r'id="chart-data">([^<]*)<', page.read_text())
    return packed


def test_a_bucket_keeps_its_mean_and_its_lowest_and_highest_value_and_gaps_stay_gaps() -> None:
    values = np.array([0, 9, -2, 1, 5, 5, 5, 5, 3, 1e300])
    assert thin(np.arange(1, 11), 4, np.arange(1, 11), values) == {
        "y": [2, 5, 3], "low": [-2, 5, 3], "high": [9, 5, 3]
    }, "values that no axis can span are left out"  # fmt: skip
    assert thin(np.arange(1, 9), 2, np.array([1, 7]), np.array([1.0, 2.0]))["y"] == [1, None, None, 2]
    assert thin(np.arange(1, 3), 1, np.array([2]), np.array([1.0])) == {"y": [None, 1]}


def test_the_page_holds_every_logged_value_and_seeds_belong_together(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    for name, seed in (("a1", 1), ("a2", 2), ("b", 1)):
        spec = {"kind": "opd", "seed": seed, "actor": {"learning_rate": 1.0 if name != "b" else 2.0}}
        values = {
            step: {"opd/loss": 1 / step + seed, "opd/accuracy": 0.5, "mine/own": 1e-9 * step, "opd/num_tokens": 5}
            for step in (1, 2)
        }
        make_run(name, attempts=[values], spec=spec)
    done = inside("report", "a1", "a2", "b", "--store", store)
    assert done.returncode == 0, done.stderr
    data = json.loads(zlib.decompress(base64.b64decode(packed_in(tmp_path / "report.html"))))
    charts = {chart["title"]: chart["lines"] for chart in data["charts"]}
    axes = [run.pop("axes") for run in data["runs"]]
    assert [of_run["tokens"] for of_run in axes] == [[[0, 1, 2], [0, 5, 10]]] * 3
    assert [of_run["hours"][0] for of_run in axes] == [[1, 2]] * 3
    assert data["runs"] == [{"name": "a1", "group": 0}, {"name": "a2", "group": 0}, {"name": "b", "group": 1}]
    assert data["groups"] == ["a1 (+1 seeds)", "b"]
    assert [line["y"] for line in charts["Loss"]] == [[2.0, 1.5], [3.0, 2.5], [2.0, 1.5]]
    assert charts["Accuracy of the training answers"][0]["y"] == [50, 50]
    assert charts["mine/own"][0]["y"] == [1e-9, 2e-9]
    assert "actor.learning_rate: 1.0 -&gt; 2.0" in (tmp_path / "report.html").read_text()


def test_a_run_has_its_attempts_and_devices(inside: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:
    spec = {"kind": "opd", "device": "cuda", "trainer": {"nnodes": 2, "gpus_per_node": 8}}
    make_run("r", attempts=[{1: {"opd/loss": 1.0}}] * 2, spec=spec, result={"steps": 2})
    (store / "r" / file_key(2)).write_text(
        '{"version": "0.1.0", "commit": "0123456789abcdef0123-dirty", "image": "i@sha256:1"}'
    )
    origin.add(LocalStore(store / "r"), 2, devices={"NVIDIA H200": 8, "<b>": 8}, trackers={})
    root = open_store(store)
    found = Origin(gather([RunPlace(run_id="r", store=root.child("r"))])[0])
    assert [line.end for line in found.attempts] == ["stopped", "finished"]
    assert [found.devices(attempt) for attempt in (1, 2)] == ["", "8 × <b>, 8 × NVIDIA H200"]
    assert (found.version, num_gpus(found.record)) == ("0.1.0 (0123456789ab-dirty)", 16)
    assert inside("report", "r", "--store", store).returncode == 0
    html = (tmp_path / "report.html").read_text()
    assert "8 × &lt;b&gt;, 8 × NVIDIA H200</td>" in html


# A page without a browser: elements that record their children, charts that record their data.
PAGE = """
const data = require("fs").readFileSync(0, "utf8"), elements = {}, plots = [];
const make = (tag) => {
  const handlers = {};
  return { tag, children: [], style: {}, value: "0", checked: true, textContent: "", append(e) { this.children.push(e); },
    addEventListener(name, call) { handlers[name] = call; }, fire(name) { handlers[name]({}); }, setAttribute() {},
    replaceChildren() { this.children = []; }, closest: () => make("label") };
};
const of = (id) => elements[id] ??= Object.assign(make(id), { textContent: id === "chart-data" ? data : "" });
globalThis.document = { getElementById: of, createElement: make, body: {} };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.addEventListener = () => {};
globalThis.uPlot = class { constructor(options, data) { plots.push([options.series.map((one) => one.label), data]); } destroy() {}
  static join(tables) { return tables; } };
const timer = setInterval(() => {
  if (of("curves-body").hidden !== false) return;
  clearInterval(timer);
  of("pooled").checked = false;
  of("pooled").fire("change");
  of("axis").value = "tokens";
  of("axis").fire("change");
  console.log(JSON.stringify(plots));
}, 20);
"""


def test_the_page_s_script_draws_seeds_as_mean_and_band_and_each_run_alone(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    need("node")
    for seed in (1, 2):
        losses = {1: {"opd/loss": 1.0 * seed}, 2: {"opd/loss": 3.0, "opd/num_tokens": 8.0 * seed}}
        make_run(f"s{seed}", attempts=[losses], spec={"kind": "opd", "seed": seed})
    assert inside("report", "--store", store).returncode == 0
    words, packed = ["node", "-e", PAGE + asset("curves.js")], packed_in(tmp_path / "report.html")
    done = subprocess.run(words, input=packed, capture_output=True, text=True, timeout=60, check=True)
    pooled, alone, by_tokens = [plot for plot in json.loads(done.stdout) if plot[1][0] != []]
    assert pooled == [["step", "s1 (+1 seeds)", None, None], [[1, 2], [1.5, 3], [2, 3], [1, 3]]]
    assert alone == [["step", "s1", "s2"], [[1, 2], [1, 3], [2, 3]]]
    assert by_tokens == [["tokens", "s1", "s2"], [[[0, 8], [1, 3]], [[0, 16], [2, 3]]]]
