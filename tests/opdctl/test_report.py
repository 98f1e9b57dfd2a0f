"""The report page: one file with everything inside, and model output that cannot run."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from opd.agent.trajectories import Segment, Trajectory, file_key, to_lines
from opd.evaluation.results import as_record, evaluate
from opd.evaluation.samples import write_generations
from opdctl.report.page import SCRIPTS, asset

SPEC = {"kind": "opd", "seed": 42, "trainer": {"total_steps": 1}, "store": {"url": "x"}}
HOSTILE = '</pre><script>document.title="PWNED"</script><img src=x onerror="document.title=\'PWNED\'">'


@pytest.fixture
def evaluated(make_run: Callable, answers: Callable, store: Path) -> tuple[str, str]:
    """Two evaluations of three problems, with answers that try to run a script."""
    names = ("base", "other")
    for name, accuracies in zip(names, ({0: [0, 0], 1: [1, 0], 2: [1, 1]}, {0: [1, 0], 1: [1, 1], 2: [1, 1]}), strict=True):  # fmt: skip
        samples = answers(name, {key: [float(v) for v in value] for key, value in accuracies.items()}, response=HOSTILE)
        [found] = evaluate(samples, num_samples=2)
        result = as_record(found) | {"num_dropped": 4}
        make_run(
            name, attempts=[{0: {"val-core/math/acc/mean@2": found.mean.value}}], result={"eval": {"math": result}}
        )
        write_generations(store / name / "eval" / "generations.parquet", samples)
    return names


def test_the_report_is_one_file_with_everything_inside_and_escapes_what_models_write(inside: Callable, evaluated: tuple[str, str], store: Path, tmp_path: Path) -> None:  # fmt: skip
    done = inside("report", *evaluated, "--store", store, "-f", "report.html")
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "report.html").read_text()
    own = [asset(name) for name in SCRIPTS]
    assert re.findall(r"<script>(.*?)</script>", html, re.DOTALL) == own
    assert html.count("<script") == len(own) + 1, "beside the scripts only their data, which no browser runs"
    assert "&lt;script&gt;" in html
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in own
    ]
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", html), "nothing is loaded from anywhere"
    assert "The MIT License (MIT)" in html
    assert '<td class="3 × 2">3 × 2</td><td class="4">4</td>' in html


def test_a_report_over_a_store_names_few_of_many_runs_and_tells_every_setting_that_differs(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opdctl.report.page.MAX_SEPARATE_RUNS", 2)
    for number in range(3):
        make_run(
            f"lr{number}",
            attempts=[{1: {"opd/loss": 1.0 + number}}],
            spec={**SPEC, "actor": {"learning_rate": 1.0 + number}},
        )
    assert inside("report", "--store", store).returncode == 0
    html = (tmp_path / "report.html").read_text()
    assert "<h1>3 runs: lr0 … lr2</h1>" in html
    assert all(f"actor.learning_rate: 1.0 -&gt; {1.0 + number}" in html for number in (1, 2))
    assert "+2 ± –" in html
    places = [html.index(text) for text in ("changed keys", "kind</td>", "<details><summary>", "seed</td>")]
    assert places == sorted(places), "the experiment's own keys come first, and those with their default are folded"


def test_the_report_shows_the_conversations_of_the_newest_step_and_the_author_of_each_line(inside: Callable, evaluated: tuple[str, str], store: Path, tmp_path: Path) -> None:  # fmt: skip
    turns = [
        Segment(trained=True, text="<tool_call>", num_tokens=1), Segment(trained=False, text="42", num_tokens=1)
    ]  # fmt: skip
    talk = Trajectory(
        partition="train", step=1, data_source=HOSTILE, data_index=3, sample=0, prompt=HOSTILE, num_prompt_tokens=1,
        segments=turns, calls=[], ending="answered", score=0.5, breakdown={}, ground_truth=HOSTILE,
    )  # fmt: skip
    for partition, step in (("train", 1), ("train", 12), *(("validation", step) for step in (0, 2, 4, 6))):
        path = store / "base" / file_key(partition, step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(to_lines([replace(talk, partition=partition, step=step)]))
    (store / "base" / file_key("validation", 1)).write_bytes(b"{}")
    (store / "base" / file_key("validation", 8)).write_bytes(b"{}")
    top = [[[HOSTILE, 0.75], ["b", 0.25]]]
    row = {"data_index": 3, "prompt": HOSTILE, "score": 1.0, "num_tokens": 1, "texts": ["\n"], "entropy": [0.5], "divergence": [0.2], "student": top, "teacher": top}  # fmt: skip
    (store / "base" / "tokens").mkdir()
    for step, rows in ((1, [row]), (2, [{}]), (3, [row])):
        tokens = {"step": step, "lengths": [1, 4, 4], "rows": rows}
        (store / "base" / "tokens" / f"step-{step:06d}.json").write_text(json.dumps(tokens))
    done = inside("report", "base", "--store", store, "-f", "report.html")
    assert "trajectories/validation-000008.jsonl is left out: a line is no conversation" in done.stderr
    html = (tmp_path / "report.html").read_text()
    assert "base, train, step 12" in html
    assert "train, step 1 " not in html
    heads = [f"base, validation, step {step} " in html for step in (0, 1, 2, 4, 6)]
    assert heads == [True, False, False, False, True], "the first and the newest, the unreadable one of them left out"
    assert html.count("base, step 1, data row 3") == html.count("base, step 3, data row 3") == 1
    assert '<span class="d3" title="entropy 0.5 · divergence 0.2 · student: &#39;&lt;/pre' in html
    assert "3 answers of 1 to 4 tokens, mean 3; axis 1 to 8, tallest bar 2" in html
    assert "&lt;tool_call&gt;\n| 42" in html
    assert HOSTILE not in html
