"""Every environment variable of the original overrides its key, by its own name, for its kinds."""

import pytest

from opd.config import SPEC_CLASSES, VARIABLES, SpecError, dump_spec, load_text, parse_tree
from opd.config.tree import field_at

# A file that says something else for every required key.
FILES = {
    "grpo": "kind: grpo\nmodel: {path: m}\n",
    "opd": "kind: opd\nmodel: {path: m}\nteacher: {path: t}\n",
    "opd-agent": "kind: opd-agent\nmodel: {path: m}\nteacher: {path: t}\nagent: {database_dir: d}\n",
    "eval": "kind: eval\nmodel: {path: m}\n",
    "passrate": "kind: passrate\nmodel: {path: m}\n",
    "convert": "kind: convert\nconvert: {checkpoint: c}\n",
}


def test_the_table_names_a_key_of_every_kind_it_lists():
    for variable in VARIABLES:
        for kind in variable.kinds:
            assert field_at(SPEC_CLASSES[kind], variable.path) is not None, (variable.name, kind)


def test_the_table_names_no_variable_twice():
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names))


def test_required_keys_may_come_from_the_environment_alone():
    loaded = load_text("kind: opd\n", env={"MODEL_PATH": "a", "TEACHER_MODEL_PATH": "b"})
    assert (loaded.spec.model.path, loaded.spec.teacher.path) == ("a", "b")


def test_an_empty_variable_counts_as_unset():
    assert load_text(FILES["opd"], env={"OPD_REWARD_BETA": "", "MODEL_PATH": ""}).env_applied == ()


def test_without_an_environment_the_file_is_final(monkeypatch):
    monkeypatch.setenv("MODEL_PATH", "elsewhere")
    assert load_text(FILES["opd"]).spec.model.path == "m"


def test_a_variable_of_another_kind_is_ignored_with_a_note():
    loaded = load_text(FILES["grpo"], env={"TEACHER_MODEL_PATH": "t", "PATH": "/bin"})
    assert loaded.notes == ("TEACHER_MODEL_PATH is set but kind grpo does not read it: ignored",)


@pytest.mark.parametrize(
    ("name", "text"),
    [("TP_SIZE", "two"), ("LEARNING_RATE", "fast"), ("ENABLE_THINKING", "maybe"), ("TOTAL_EPOCHS", "1.5"),
     ("OPD_LOSS_TYPE", "reverse"), ("TOP_P", "nan"), ("SAVE_FREQ", "0x10"), ("RUN_ID", "My_Run"), ("TRAIN_BATCH_SIZE", "0")],
)  # fmt: skip
def test_a_bad_value_names_the_variable(name, text):
    with pytest.raises(SpecError) as caught:
        load_text(FILES["opd"], env={name: text})
    assert f"environment variable {name}" in str(caught.value)
    assert text in str(caught.value)


def test_the_two_names_of_the_tensor_parallel_size_must_agree():
    both = {"TP_SIZE": "2", "ROLLOUT_NTP_SIZE": "2"}
    assert load_text(FILES["opd"], env=both).spec.rollout.tensor_parallel_size == 2
    with pytest.raises(SpecError, match="TP_SIZE=2 and ROLLOUT_NTP_SIZE=4"):
        load_text(FILES["opd"], env=both | {"ROLLOUT_NTP_SIZE": "4"})


@pytest.mark.parametrize(
    ("text", "value"), [("True", True), ("1", True), ("yes", True), ("false", False), ("0", False)]
)
def test_truth_values_are_read_as_shell_scripts_write_them(text, value):
    assert load_text(FILES["opd"], env={"ENABLE_THINKING": text}).spec.data.enable_thinking is value


def test_precedence_is_file_then_environment_then_set_then_hydra():
    file = FILES["opd"] + "data: {train_batch_size: 64}\n"
    env = {"TRAIN_BATCH_SIZE": "128"}
    sets = ["data.train_batch_size=192"]
    hydra = ["data.train_batch_size=320"]
    found = [
        load_text(file).spec.data.train_batch_size,
        load_text(file, env=env).spec.data.train_batch_size,
        load_text(file, env=env, sets=sets).spec.data.train_batch_size,
        load_text(file, env=env, sets=sets, overrides=hydra).spec.data.train_batch_size,
    ]
    assert found == [64, 128, 192, 320]


def test_the_environment_beats_raw_overrides_of_the_file():
    file = FILES["opd"] + "overrides: [data.train_batch_size=64]\n"
    assert load_text(file).spec.data.train_batch_size == 64
    assert load_text(file, env={"TRAIN_BATCH_SIZE": "128"}).spec.data.train_batch_size == 128


def test_defaults_follow_values_from_the_environment():
    spec = load_text(FILES["opd"], env={"MAX_RESPONSE_LENGTH": "100", "ENABLE_THINKING": "False"}).spec
    assert spec.opd.max_length == 2048 + 100
    assert spec.rollout.val.temperature == 0.7


def test_a_loaded_spec_is_stored_whole_and_needs_no_environment_again():
    spec = load_text(FILES["opd"], env={"LEARNING_RATE": "3e-6", "OPD_LOSS_TYPE": "jsd"}).spec
    assert parse_tree(dump_spec(spec)).spec == spec
