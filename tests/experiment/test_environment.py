"""Every environment variable of the original overrides its key, by its own name, for its kinds; tests/promises has the list."""

import pytest

from opd.experiment import SPEC_CLASSES, VARIABLES, SpecError, dump_spec, load_text, parse_tree
from opd.experiment.tree import field_at

OPD = "kind: opd\nmodel: {path: m}\nteacher: {path: t}\n"


def test_the_table_names_a_key_of_every_kind_and_no_variable_twice():
    for variable in VARIABLES:
        for kind in variable.kinds:
            assert field_at(SPEC_CLASSES[kind], variable.path) is not None, (variable.name, kind)
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)


def test_required_keys_may_come_from_the_environment_alone_which_counts_only_where_it_is_given(monkeypatch):
    spec = load_text("kind: opd\n", env={"MODEL_PATH": "a", "TEACHER_MODEL_PATH": "b"}).spec
    assert (spec.model.path, spec.teacher.path) == ("a", "b")
    monkeypatch.setenv("MODEL_PATH", "elsewhere")
    assert load_text(OPD).spec.model.path == "m"


def test_a_variable_of_another_kind_is_ignored_with_a_note():
    loaded = load_text("kind: grpo\nmodel: m\n", env={"TEACHER_MODEL_PATH": "t", "PATH": "/bin"})
    assert loaded.notes == ("TEACHER_MODEL_PATH is set but kind grpo does not read it: ignored",)


def test_the_two_names_of_the_tensor_parallel_size_must_agree():
    both = {"TP_SIZE": "2", "ROLLOUT_NTP_SIZE": "2"}
    assert load_text(OPD, env=both).spec.rollout.tensor_parallel_size == 2
    with pytest.raises(SpecError, match="TP_SIZE=2 and ROLLOUT_NTP_SIZE=4"):
        load_text(OPD, env=both | {"ROLLOUT_NTP_SIZE": "4"})


def test_defaults_follow_values_from_the_environment_and_the_stored_spec_needs_none_again():
    spec = load_text(OPD, env={"MAX_RESPONSE_LENGTH": "100", "ENABLE_THINKING": "False"}).spec
    assert (spec.opd.max_length, spec.rollout.val.temperature) == (2048 + 100, 0.7)
    assert parse_tree(dump_spec(spec)).spec == spec
