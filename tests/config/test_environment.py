"""Every environment variable of the original overrides its key, by its own name, for its kinds."""

import pytest

from opd.config import SPEC_CLASSES, VARIABLES, SpecError, dump_spec, load_text, parse_tree
from opd.config.tree import field_at, get_path

# The original's variables by kind, as its documentation names them; values are none of the defaults.
TRAINING = {
    "MODEL_PATH": ("model.path", "mm"),
    "MODEL_NAME": ("model.name", "nn"),
    "DATA_DIR": ("data.dir", "dd"),
    "LEARNING_RATE": ("actor.learning_rate", "3e-6"),
    "TOTAL_EPOCHS": ("trainer.total_epochs", "3"),
    "SAVE_FREQ": ("trainer.save_freq", "7"),
    "TEST_FREQ": ("trainer.test_freq", "9"),
    "TP_SIZE": ("rollout.tensor_parallel_size", "2"),
    "ROLLOUT_NTP_SIZE": ("rollout.tensor_parallel_size", "2"),
    "GPU_MEMORY_UTIL": ("rollout.gpu_memory_utilization", "0.5"),
    "TEMPERATURE": ("rollout.temperature", "0.9"),
    "TOP_P": ("rollout.top_p", "0.95"),
    "TOP_K": ("rollout.top_k", "50"),
    "VAL_TEMPERATURE": ("rollout.val.temperature", "0.1"),
    "VAL_TOP_P": ("rollout.val.top_p", "0.5"),
    "VAL_TOP_K": ("rollout.val.top_k", "5"),
    "RUN_ID": ("name", "run-1"),
    "OUTPUT_ROOT": ("output.root", "oo"),
    "MASTER_PORT": ("trainer.master_port", "29501"),
    "TRAIN_BATCH_SIZE": ("data.train_batch_size", "1024"),
    "PPO_MINI_BATCH_SIZE": ("actor.ppo_mini_batch_size", "32"),
    "PPO_MICRO_BATCH_SIZE_PER_GPU": ("actor.ppo_micro_batch_size_per_gpu", "1"),
    "MAX_PROMPT_LENGTH": ("data.max_prompt_length", "64"),
    "MAX_RESPONSE_LENGTH": ("data.max_response_length", "65"),
    "ROLLOUT_N": ("rollout.num_samples", "16"),
}
GRPO = {
    "LOG_PROB_MICRO_BATCH_SIZE_PER_GPU": ("actor.log_prob_micro_batch_size_per_gpu", "8"),
    "KL_LOSS_COEF": ("grpo.kl_loss_coef", "0.01"),
    "KL_LOSS_TYPE": ("grpo.kl_loss_type", "mse"),
    "CLIP_RATIO_LOW": ("grpo.clip_ratio_low", "0.1"),
    "CLIP_RATIO_HIGH": ("grpo.clip_ratio_high", "0.3"),
    "CLIP_RATIO_C": ("grpo.clip_ratio_c", "5"),
    "USE_DYNAMIC_BSZ": ("actor.use_dynamic_bsz", "False"),
    "LOSS_AGG_MODE": ("grpo.loss_agg_mode", "token-sum"),
    "ENTROPY_COEFF": ("grpo.entropy_coeff", "0.001"),
    "DAPO_TRAIN_RATIO": ("data.train_ratio", "0.9"),
}
OPD = {
    "TEACHER_MODEL_PATH": ("teacher.path", "tt"),
    "OPD_LOSS_TYPE": ("opd.loss_type", "forward_kl"),
    "OPD_CHUNK_SIZE": ("opd.chunk_size", "512"),
    "OPD_MAX_LENGTH": ("opd.max_length", "40000"),
    "OPD_REWARD_BETA": ("opd.reward_beta", "0.5"),
    "ENABLE_THINKING": ("data.enable_thinking", "False"),
    "VAL_BEFORE_TRAIN": ("trainer.val_before_train", "True"),
}
AGENT = OPD | {
    "DATABASE_DIR": ("agent.database_dir", "bb"),
    "ENABLE_TOOLS": ("agent.enable_tools", "False"),
    "MAX_ASSISTANT_TURNS": ("agent.max_assistant_turns", "5"),
    "MAX_TOOL_RESPONSE_LENGTH": ("agent.max_tool_response_length", "99"),
    "TOOL_FORMAT": ("agent.tool_format", "gpt-oss"),
    "AGENT_NUM_WORKERS": ("rollout.num_agent_workers", "3"),
    "TRAIN_RATIO": ("data.train_ratio", "0.7"),
    "TOOL_CONFIG_PATH": ("agent.tool_config_path", "tools.yaml"),
    "REWARD_FN_PATH": ("reward.path", "fn.py"),
}
EVAL = {
    "MODEL_PATH": ("model.path", "mm"),
    "INSTRUCTION_VARIANT": ("eval.instruction_variant", "dapo"),
    "REWARD_FUNCTION": ("reward.function", "math_verify"),
    "VAL_N": ("rollout.val.num_samples", "4"),
    "VAL_TEMPERATURE": ("rollout.val.temperature", "0.1"),
    "VAL_TOP_P": ("rollout.val.top_p", "0.5"),
    "VAL_TOP_K": ("rollout.val.top_k", "5"),
    "TRAIN_BATCH_SIZE": ("data.train_batch_size", "128"),
    "PPO_MINI_BATCH_SIZE": ("actor.ppo_mini_batch_size", "32"),
    "PPO_MICRO_BATCH_SIZE_PER_GPU": ("actor.ppo_micro_batch_size_per_gpu", "1"),
    "LOG_PROB_MICRO_BATCH_SIZE_PER_GPU": ("actor.log_prob_micro_batch_size_per_gpu", "8"),
    "ROLLOUT_N": ("rollout.num_samples", "16"),
    "MAX_RESPONSE_LENGTH": ("data.max_response_length", "65"),
}
BY_KIND = {
    "grpo": TRAINING | GRPO,
    "opd": TRAINING | OPD,
    "opd-agent": TRAINING | AGENT,
    "eval": EVAL,
    "passrate": EVAL,
    "convert": {"CHECKPOINT_PATH": ("convert.checkpoint", "cc"), "RUN_ID": ("name", "run-1")},
}
# A file that says something else for every required key.
FILES = {
    "grpo": "kind: grpo\nmodel: {path: m}\n",
    "opd": "kind: opd\nmodel: {path: m}\nteacher: {path: t}\n",
    "opd-agent": "kind: opd-agent\nmodel: {path: m}\nteacher: {path: t}\nagent: {database_dir: d}\n",
    "eval": "kind: eval\nmodel: {path: m}\n",
    "passrate": "kind: passrate\nmodel: {path: m}\n",
    "convert": "kind: convert\nconvert: {checkpoint: c}\n",
}
TYPED = {"True": True, "False": False}


def as_value(text):
    if text in TYPED:
        return TYPED[text]
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize("kind", BY_KIND)
def test_every_variable_of_the_original_overrides_its_key(kind):
    expected = BY_KIND[kind]
    loaded = load_text(FILES[kind], env={name: text for name, (_, text) in expected.items()})
    tree = dump_spec(loaded.spec)
    assert {name: get_path(tree, path) for name, (path, _) in expected.items()} == {
        name: as_value(text) for name, (_, text) in expected.items()
    }
    assert {(item.name, item.path) for item in loaded.env_applied} == {(n, p) for n, (p, _) in expected.items()}
    assert not any("ignored" in note for note in loaded.notes)


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
