"""A chat template is a program of the model's author: it may fail or never end, and the start says so."""

import signal
from types import SimpleNamespace

import jinja2
import pytest

from opd.data import chat_template
from opd.data.chat_template import UnfitTemplate, render

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "why"),
    [(ENDLESS, "TimeoutError: it takes longer than 0.2 s"), ("{{ 1 // 0 }}", "it fails: ZeroDivisionError")],
    ids=["endless", "failing"],
)
def test_a_template_that_fails_or_never_ends_is_named(monkeypatch: pytest.MonkeyPatch, template: str, why: str) -> None:
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)  # the timer of the test itself
    before = signal.getsignal(signal.SIGALRM)
    tokenizer = SimpleNamespace(
        name_or_path="m", apply_chat_template=lambda messages, **_: jinja2.Template(template).render(messages=messages)
    )
    with pytest.raises(UnfitTemplate, match=why):
        render(tokenizer, [{"role": "user", "content": "hi"}])
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]) == (before, 0.0)
