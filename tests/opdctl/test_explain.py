"""`opdctl explain` from the schema alone."""

from __future__ import annotations

import pytest

from opdctl.commands.explain import explained
from opdctl.console import ToolError


def test_a_key_has_type_default_variable_kinds_and_meaning() -> None:
    [facts, says] = explained("opd.loss_type")
    assert facts.startswith("opd.loss_type  ")
    assert all(word in facts for word in ('"jsd"', 'default "reverse_kl"', "OPD_LOSS_TYPE", "opd-agent"))
    assert says.strip()


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("opd.importance", "opd.importance.tokens.ratio"),
        ("TEACHER_MODEL_PATH", "teacher.path"),
        ("", "cluster.gpu.type"),
    ],
)
def test_a_section_a_variable_and_no_word_lead_to_keys(word: str, path: str) -> None:
    assert path in [line.split()[0] for line in explained(word)]


@pytest.mark.parametrize(
    ("word", "near"), [("opd.los_type", "opd.loss_type"), ("cluster.gpu.tipe", "cluster.gpu.type")]
)
def test_an_unknown_word_is_a_usage_error_that_names_the_nearest_key(word: str, near: str) -> None:
    with pytest.raises(ToolError) as caught:
        list(explained(word))
    assert caught.value.exit_code == 2
    assert near in caught.value.fix
