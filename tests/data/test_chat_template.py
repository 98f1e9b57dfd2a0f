"""A chat template is a program of the model's author: it may fail, and the start says so."""

from __future__ import annotations

from types import SimpleNamespace

import jinja2
import pytest

from opd.data.chat_template import UnfitTemplate, render


def test_a_template_that_fails_is_named() -> None:
    template = jinja2.Template("{{ 1 // 0 }}")
    tokenizer = SimpleNamespace(
        name_or_path="m", apply_chat_template=lambda messages, **_: template.render(messages=messages)
    )
    with pytest.raises(UnfitTemplate, match="it fails: ZeroDivisionError"):
        render(tokenizer, [{"role": "user", "content": "hi"}])
