"""The report's view of a run's tokens: shares by hand, the page's link, and text that cannot run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opd.runs.tokens import StepTokens, TokenRow, file_key, to_bytes
from opd.store.opening import open_store
from opdctl.report.page import environment, write_report
from opdctl.report.token_page import render, shown_tokens
from opdctl.runs.find import RunPlace
from opdctl.runs.gather import gather

HOSTILE = '</pre></i><script>document.title="PWNED"</script><img src=x onerror="document.title=\'PWNED\'">'


def row(**changes: object) -> TokenRow:
    fields = {
        "data_index": 3, "sample": 1, "turn": 0, "prompt": HOSTILE, "score": 1.0, "num_tokens": 4, "texts": ("a", HOSTILE, "\n", ""),
        "trained": (True, True, False, True), "kept": (True, False, False, False), "entropy": (0.02, 3.0, None, None),
        "divergence": (0.5, 2.0, None, 0.001),
    }  # fmt: skip
    return TokenRow(**fields | changes)


def step(number: int = 1, **changes: object) -> StepTokens:
    fields = {
        "step": number, "score": "soft_or", "ratio": 0.25, "divergence": "reverse_kl", "covers_all": True,
        "density": ((10, 10, 2, 0), (20, 20, 2, 1)), "rows": (row(),),
    }  # fmt: skip
    return StepTokens(**fields | changes)


def test_a_token_shows_its_levels_its_values_and_that_it_is_in_the_loss():
    first, second, tools, part = shown_tokens(row())
    assert first == {
        "classes": "h1 d4 k",
        "values": "entropy 0.02 nats · divergence 0.5 nats · in the loss",
        "text": "a",
    }
    assert second["classes"] == "h6 d5"
    assert (tools["classes"], tools["text"]) == ("x", "↵\n")
    assert (part["classes"], part["text"]) == ("h- d0", "▫")
    assert part["values"] == "entropy not computed · divergence 0.001 nats · not in the loss"


def test_the_page_escapes_what_a_model_wrote():
    html = render(HOSTILE, [step(), step(2, rows=(), score="none")], environment())
    assert "<script" not in html
    assert "<img" not in html
    assert html.count("&lt;script&gt;") == 5  # title, heading, prompt, token, table
    assert "default-src 'none'" in html
    assert "No rollout of this step was kept." in html


@pytest.fixture
def kept(make_run: Callable, store: Path) -> Path:
    """The folder of tokens of the run `chosen`; another run has none."""
    make_run("chosen", attempts=[{1: {"opd/loss": 1.0}}])
    make_run("other", attempts=[{1: {"opd/loss": 1.0}}])
    for number in (1, 20):
        path = store / "chosen" / file_key(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(step(number)))
    return path.parent


def test_a_report_links_to_the_tokens_of_a_run(inside: Callable, kept: Path, store: Path, tmp_path: Path) -> None:  # fmt: skip
    done = inside("report", "chosen", "other", "--store", store)
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "report.html").read_text()
    assert '<a href="report-tokens-1.html">chosen: ' in html
    assert "report-tokens-2" not in html
    page = (tmp_path / "report-tokens-1.html").read_text()
    assert page.count("<details open>") == 1
    assert 'data-v="entropy 3 nats · divergence 2 nats · not in the loss"' in page


def test_a_damaged_file_costs_the_page_and_not_the_report(kept: Path, store: Path, tmp_path: Path, capsys) -> None:  # fmt: skip
    (kept / "step-000020.json").write_text('{"step": "<b>"}')
    root = open_store(store)
    found = gather([RunPlace(run_id="chosen", store=root.child("chosen"))])
    written: dict[str, str] = {}
    write_report(found, written.__setitem__, stem="report", num_samples=3)
    assert list(written) == ["report.html"]
    assert "chosen: its tokens are left out: tokens/step-000020.json: step: " in capsys.readouterr().err
