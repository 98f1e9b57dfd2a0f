"""`opdctl keys` explains the keys from the schema alone."""

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["opd.importance"], "opd.importance.tokens.ratio"),
        (["TEACHER_MODEL_PATH"], "teacher.path"),
        ([], "cluster.gpu.type"),
    ],
)
def test_a_section_a_variable_and_no_word_lead_to_keys(inside: Callable, words: list[str], path: str) -> None:
    assert path in [line.split()[0] for line in inside("keys", *words).stdout.splitlines()]


def test_a_key_has_type_default_and_kinds_and_an_unknown_word_the_nearest_key(inside: Callable) -> None:
    [facts, _] = inside("keys", "opd.loss_type").stdout.splitlines()
    assert all(word in facts for word in ("'jsd'", 'default "reverse_kl"', "OPD_LOSS_TYPE", "opd-agent"))
    done = inside("keys", "opd.los_type")
    assert (done.returncode, "did you mean opd.loss_type?" in done.stderr) == (2, True)
