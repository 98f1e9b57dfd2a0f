"""`opdctl explain` from the schema alone."""

from __future__ import annotations

import pytest

from opd.config import FILE_KINDS
from opd.config.keys import cluster_keys, spec_keys
from opdctl.commands.explain import explained
from opdctl.errors import ToolError


def text(word: str | None) -> str:
    return "\n".join(explained(word, width=300))


def test_a_key_has_type_default_variable_kinds_and_meaning() -> None:
    found = text("opd.loss_type")
    assert found.startswith("opd.loss_type  ")
    assert '"reverse_kl" | "forward_kl" | "jsd"' in found
    assert 'default "reverse_kl"' in found
    assert "OPD_LOSS_TYPE" in found
    assert "kinds opd, opd-agent" in found


def test_a_section_a_word_and_a_variable_lead_to_their_keys() -> None:
    assert {"opd.importance.tokens.ratio", "opd.importance.tokens.mode"} <= set(text("opd.importance").split())
    assert "actor.learning_rate" in text("peak")
    assert text("TEACHER_MODEL_PATH").startswith("teacher.path ")


def test_without_a_word_every_key_is_listed() -> None:
    found = text(None)
    assert all(path in found for kind in FILE_KINDS for path in (*spec_keys(kind), *cluster_keys()))


def test_an_unknown_word_is_a_usage_error_that_names_the_nearest_key() -> None:
    for word, near in (("opd.los_type", "opd.loss_type"), ("cluster.gpu.tipe", "cluster.gpu.type"), ("", "lists all")):
        with pytest.raises(ToolError) as caught:
            text(word)
        assert caught.value.exit_code == 2
        assert near in caught.value.fix
