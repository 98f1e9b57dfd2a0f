"""Comparisons and the report page: paired differences against hand-computed ones, and model output that cannot run."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from opd.evaluation.results import evaluate
from opd.evaluation.samples import write_generations
from opdctl.report import assets
from opdctl.report.page import MAX_SEPARATE_RUNS
from opdctl.runs.compare import Group, compare_evaluations, compare_metric, group_runs
from opdctl.runs.compare_view import MAX_SEPARATE
from opdctl.runs.record import RunRecord

SPEC = {"kind": "opd", "seed": 1, "trainer": {"total_steps": 1}, "store": {"url": "x"}}
HOSTILE = '</pre><script>document.title="PWNED"</script><img src=x onerror="document.title=\'PWNED\'">'


def record(name: str, *, seed: int = 1, lr: float = 1e-6, **latest: float) -> RunRecord:
    spec = {"kind": "opd", "name": name, "seed": seed, "actor": {"learning_rate": lr}}
    return RunRecord(run_id=name, url=name, kind="opd", spec_hash="", state="succeeded", detail="", num_attempts=1,
                     last_step=1, total_steps=1, latest=latest, spec=spec)  # fmt: skip


def test_runs_that_differ_in_their_seed_only_are_one_group() -> None:
    groups = group_runs([record("a", seed=1), record("b", seed=1, lr=2e-6), record("c", seed=2)])
    assert [[run.run_id for run in group.records] for group in groups] == [["a", "c"], ["b"]]


def test_a_metric_is_paired_by_seed() -> None:
    before = Group(name="a", records=tuple(record(f"a{s}", seed=s, loss=float(s)) for s in (1, 2, 3)))
    after = Group(
        name="b", records=tuple(record(f"b{s}", seed=s, loss=s + delta) for s, delta in ((1, 1), (2, 2), (3, 3)))
    )
    found = compare_metric("loss", before, after)
    assert found is not None
    # Differences 1, 2, 3: mean 2, deviation 1, error 1 / sqrt(3).
    assert found.difference == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert (found.num_pairs, found.paired_by) == (3, "seed")


def test_one_run_a_side_gives_no_standard_error() -> None:
    found = compare_metric("loss", Group(name="a", records=(record("a", loss=1.0),)), Group(name="b", records=(record("b", loss=3.0),)))  # fmt: skip
    assert found is not None
    assert found.difference.value == 2.0
    assert math.isnan(found.difference.standard_error)


def test_evaluations_are_paired_by_problem_and_say_what_they_leave_out(answers: Callable) -> None:
    runs = [
        {"math": evaluate(answers("r", accuracies), num_samples=2)[0]}
        for accuracies in ({0: [0, 0], 1: [1, 0], 2: [1, 1]}, {0: [1, 0], 1: [1, 1], 3: [1, 1]})
    ]
    found, _ = compare_evaluations(runs[:1], runs[1:])
    assert found.quantity == "math mean@n"
    assert found.difference == (0.5, 0.0)
    assert found.num_pairs == 2
    assert found.remark.startswith("2 problems")


@pytest.fixture
def evaluated(make_run: Callable, answers: Callable, store: Path) -> tuple[str, str]:
    """Two evaluations of three problems, with answers that try to run a script."""
    names = ("base", "other")
    for name, accuracies in zip(names, ({0: [0, 0], 1: [1, 0], 2: [1, 1]}, {0: [1, 0], 1: [1, 1], 2: [1, 1]}), strict=True):  # fmt: skip
        samples = answers(name, {key: [float(v) for v in value] for key, value in accuracies.items()}, response=HOSTILE)
        [found] = evaluate(samples, num_samples=2)
        result = {"num_problems": 3, "num_samples": 2, "num_dropped": 4, "mean": found.mean.value, "standard_error": found.mean.standard_error,
                  "pass_at": [e.value for e in found.pass_at], "maj_at": [e.value for e in found.majority_at]}  # fmt: skip
        if name == "other":  # the base's is of a version that wrote none
            result["numbers"] = {"plan_read": {"mean": 0.625, "standard_error": 0.125, "num_answers": 5}}
        make_run(
            name, attempts=[{0: {"val-core/math/acc/mean@2": found.mean.value}}], result={"eval": {"math": result}}
        )
        write_generations(store / name / "eval" / "generations.parquet", samples)
    return names


def test_the_report_is_one_file_with_everything_inside_and_escapes_what_models_write(call: Callable, evaluated: tuple[str, str], store: Path, tmp_path: Path) -> None:  # fmt: skip
    done = call("report", *evaluated, "--store", store, "-f", "report.html")
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "report.html").read_text()
    own = [assets.read(name) for name in assets.SCRIPTS]
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
    assert "3 × 2 (4 too long)" in html
    cells = [f'<td class="{cell}">{cell}</td>' for cell in ("math", "plan_read", "0.625 ± 0.125", "5")]
    assert html.count(f"<tr>{''.join(cells)}</tr>") == 1


def test_the_chart_library_is_the_one_that_was_downloaded_and_its_notice_is_beside_it() -> None:
    for name, expected in assets.SHA256.items():
        assert sha256(assets.read(name).encode()).hexdigest() == expected, name
    assert "Permission is hereby granted" in assets.read(assets.NOTICE)


@pytest.mark.slow
def test_many_groups_are_compared_in_one_table_a_row_each(call: Callable, make_run: Callable, store: Path) -> None:
    for number in range(MAX_SEPARATE + 2):
        spec = {**SPEC, "actor": {"learning_rate": 1.0 + number}}
        make_run(f"lr{number}", attempts=[{1: {"opd/loss": 1.0 + number}}], spec=spec)
    done = call("compare", *(f"lr{number}" for number in range(MAX_SEPARATE + 2)), "--store", store)
    assert done.returncode == 0, done.stderr
    [row] = [line for line in done.stdout.splitlines() if "-> 5.0" in line]
    assert "lr4" in row
    assert "+4 ± –" in row


@pytest.mark.slow
def test_a_report_over_a_store_names_few_of_many_runs_and_tells_every_setting_that_differs(call: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    num_runs = MAX_SEPARATE_RUNS + 1
    for number in range(num_runs):
        spec = {**SPEC, "actor": {"learning_rate": 1.0 + number}}
        make_run(f"lr{number:02d}", attempts=[{1: {"opd/loss": 1.0 + number}}], spec=spec)
    done = call("report", "--store", store)
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "report.html").read_text()
    assert f"<h1>{num_runs} runs: lr00 … lr12</h1>" in html
    assert all(f"actor.learning_rate: 1.0 -&gt; {1.0 + number}" in html for number in range(1, num_runs))
    assert "+12 ± –" in html
