"""Hostile records of a run: they cost this run its row at most, and no command obeys them."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from opdctl.report.page import SCRIPTS

# Rich's markup (closing a tag that was never opened raises), a formula to matplotlib, HTML, and what a terminal obeys.
NAMES = (
    "[bold]x",
    "[link=a]b",
    "$\\frac{",
    "<script>alert(1)<script>",
    "a\x1b]0;owned\x07\x9b2J",
    "two\nlines",
    ":skull:",
)
MEANS = {"acc/mean": 0.5, "acc/pass@2": 0.5, "acc/maj": 0.5}
NUMBERS = {"num_problems": 2, "num_samples": 2, "num_dropped": 0, "means": MEANS, "standard_errors": {"acc/mean": 0.5}}
RESULTS = (
    "[1, 2]", "{", '{"eval": [1]}', '{"eval": {"math": {}}}', '{"eval": {"math": 3, "[/red]": {"means": "x"}}}',
    json.dumps({"eval": {"math": {**NUMBERS, "means": {}}}}), json.dumps({"eval": {"math": {**NUMBERS, "means": None}}}),
    json.dumps({"eval": {"\ud800\x1b[2J": NUMBERS}, "steps": 10**400}), "[" * 100_000, '{"steps": "many"}', "\xff",
    json.dumps({"eval": {"math": {**NUMBERS, "means": {**MEANS, "acc/mean": 10**400}}}}),
    '{"a": ' + '{"a": ' * 400 + "1" + "}" * 401,
)  # fmt: skip
SPECS = (
    '{"kind": "[/red]", "seed": "x", "trainer": 7}', '{"kind": {"a": "\\u001b[2J"}, "trainer": {"total_steps": "\\ud800"}}', "null",
    '{"\\ud800": 1, "seed": [], "trainer": {"total_steps": -1}}', '{"kind": "opd", "seed": 1e999}',
    f'{{"kind": "opd", "trainer": {{"nnodes": {10**400}, "gpus_per_node": 8}}}}',
)  # fmt: skip
METRICS = (
    b'{"step": 1, "opd/loss": 1e308, "[/red]": 1}\n{"step": 2, "opd/loss": -1e308}\n', b'{"step": 1, "\\ud800": 1, "a\\u001b[2J": 2}\n',
    b'{"step": 1, "x": ' + b"[" * 100_000 + b"}\n", b'{"step": 99999999999999999999, "opd/loss": 1}\n', b'{"step": 1, "\xff": 1}\n' * 9,
    b'{"step": 1, "step": 2, "opd/loss": {"a": 1}, "val-core/[/red]/acc/mean@1": 1}\n', b"\x00" * 50, b'{"step": 1, "run_id": 5}\n',
)  # fmt: skip
# Of an owner's record and of a beat: no time, and no float.
TIMES = (-1.0, 1e300, math.nan, math.inf, 10**400, True, "soon", None, [])


@pytest.fixture
def hostile_store(make_run: Callable, store: Path) -> Path:
    """A good run among one of each hostile kind."""
    for name in ("good", "other"):
        make_run(name, result={"steps": 1}, spec={"kind": "opd", "seed": 1, "trainer": {"total_steps": len(name)}})
    for name in NAMES:
        hostile(store, name)
    for kind, values in (("result", RESULTS), ("spec", SPECS), ("metrics", METRICS)):
        for number, value in enumerate(values):
            hostile(store, f"{kind}-{number}", **{kind: value})
    return store


def hostile(store: Path, name: str, *, spec: str = '{"kind": "[/red]\\u001b[2J"}', result: str | None = None,
            metrics: bytes = METRICS[0]) -> None:  # fmt: skip
    folder = store / name
    attempt = folder / "attempts" / "0001"
    for odd in ("attempts/0001", "attempts/²", f"attempts/{'9' * 200}", "checkpoints/global_step_²"):
        (folder / odd).mkdir(parents=True)
        (folder / odd / "owner.json").write_text(
            '{"attempt": 1, "process": {"host": "\\u001b[2J[/red]"}, "started_at_s": "x"}'
        )
    (attempt / "ended.json").write_text('{"outcome": "failed", "detail": "[/red]\\u001b]0;owned\\u0007"}')
    (attempt / "metrics.jsonl").write_bytes(metrics)
    (attempt / "driver.log").write_bytes(b"a\x1b]0;owned\x07b\xc2\x85c\xe2\x80\xa8d\n[/red]\n")
    (folder / "run.json").write_text('{"spec_hash": "[/red]\\u001b[2J"}')
    (folder / "spec.json").write_text(spec)
    if result is not None:
        (folder / "result.json").write_bytes(result.encode("utf-8", "surrogatepass"))
        (folder / "eval").mkdir()
        (folder / "eval" / "generations.parquet").write_bytes(b"PAR1 no parquet")
        (folder / "trajectories").mkdir()
        (folder / "trajectories" / "train-000001.jsonl").write_text('{"step": 1}\n')


def checked(done) -> str:
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    for text in (done.stdout, done.stderr):
        assert not {*text}.intersection("\x1b\x07\x9b\x85\u2028"), text[:500]
    return done.stdout


@pytest.mark.slow
def test_no_run_of_a_store_breaks_or_commands_what_shows_them_all(
    inside: Callable, hostile_store: Path, tmp_path: Path
) -> None:
    listed = checked(inside("list", "--store", hostile_store))
    assert all(words in listed for words in ("\ngood ", "[/red]", "[bold]x", ":skull:"))
    checked(inside("collect", "--store", hostile_store))
    found = json.loads(checked(inside("collect", "--store", hostile_store, "-o", "json")))["runs"]
    runs = {run["run_id"]: run for run in found}
    assert runs["good"]["state"] == "succeeded"
    assert len(runs) == 2 + len(NAMES) + len(RESULTS) + len(SPECS) + len(METRICS)
    assert runs["result-0"]["state"] == "unreadable"
    assert runs["result-2"]["state"] == "unreadable"
    checked(inside("collect", "--store", hostile_store, "-o", "csv"))
    checked(inside("report", "--store", hostile_store, "-f", "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "good" in page
    assert page.count("<script") == len(SCRIPTS) + 1
    assert "alert(1)<" not in page


@pytest.mark.slow
def test_a_hostile_run_is_shown_compared_and_its_log_printed_without_being_obeyed(
    inside: Callable, hostile_store: Path
) -> None:
    for name in ("result-7", "spec-0", "metrics-0"):
        checked(inside("status", name, "--store", hostile_store))
        assert "good" in checked(inside("compare", "good", name, "--store", hostile_store))
    shown = checked(inside("status", "spec-1", "--store", hostile_store))
    assert "failed" in shown
    assert checked(inside("logs", "spec-0", "--store", hostile_store)).splitlines()[-2:] == [
        "a\\x1b]0;owned\\x07b\\x85c\\u2028d", "[/red]"
    ]  # fmt: skip


@pytest.mark.slow
def test_numbers_that_are_no_times_and_endless_nesting_cost_neither_status_nor_a_report(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    for number, time_s in enumerate(TIMES):  # a good run whose one attempt, still open, says this of every time
        attempt = store / make_run(f"times-{number}") / "attempts" / "0001"
        owner = json.loads((attempt / "owner.json").read_text())
        (attempt / "owner.json").write_text(json.dumps(owner | {"started_at_s": time_s}))
        beat = dict.fromkeys(("time_s", "progress_at_s", "step", "limit_s"), time_s)
        (attempt / "heartbeat.json").write_text(json.dumps({"phase": "rollout"} | beat))
        (attempt / "ended.json").unlink(missing_ok=True)
        checked(inside("status", f"times-{number}", "--store", store))
    hostile(store, "huge", spec=SPECS[-1])
    make_run("deep")
    for name in ("owner", "heartbeat", "ended", "origin"):
        (store / "deep" / "attempts" / "0001" / f"{name}.json").write_text("[" * 100_000)
    checked(inside("status", "deep", "--store", store))
    checked(inside("report", "--store", store))
    page = (tmp_path / "report.html").read_text()
    assert all(f"times-{number}" in page for number in range(len(TIMES)))
