"""Environment variables of the original's scripts: the key that each one sets, and the scripts' defaults."""

import pytest
from tests.promises.commands import dry_run

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
FILES = {
    "opd": "kind: opd\nmodel: {path: m}\nteacher: {path: t}\n",
    "opd-agent": "kind: opd-agent\nmodel: {path: m}\nteacher: {path: t}\nagent: {database_dir: /d}\n",
    "grpo": "kind: grpo\nmodel: {path: m}\n",
    "native": "kind: grpo\nrecipe: grpo-native\nmodel: {path: m}\n",
    "native-no-kl": "kind: grpo\nrecipe: grpo-native-no-kl\nmodel: {path: m}\n",
    "eval": "kind: eval\nmodel: {path: m}\n",
    "convert": "kind: convert\nconvert: {checkpoint: global_step_1}\n",
}
# (variable, its text, key, value). A key is verl's where the trainer hands the value to verl, else the experiment file's.
SAMPLES = [
    ("MODEL_PATH", "/models/student", "actor_rollout_ref.model.path", "/models/student"),
    ("MODEL_NAME", "My-Model", "model.name", "My-Model"),
    ("TRAIN_BATCH_SIZE", "96", "data.train_batch_size", 96),
    ("PPO_MINI_BATCH_SIZE", "24", f"{ACTOR}.ppo_mini_batch_size", 24),
    ("PPO_MICRO_BATCH_SIZE_PER_GPU", "3", f"{ACTOR}.ppo_micro_batch_size_per_gpu", 3),
    ("LOG_PROB_MICRO_BATCH_SIZE_PER_GPU", "6", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", 6),
    ("MAX_PROMPT_LENGTH", "1000", "data.max_prompt_length", 1000),
    ("MAX_RESPONSE_LENGTH", "3000", "data.max_response_length", 3000),
    ("ROLLOUT_N", "6", f"{ROLLOUT}.n", 6),
    ("TEMPERATURE", "0.9", f"{ROLLOUT}.temperature", 0.9),
    ("TOP_P", "0.95", f"{ROLLOUT}.top_p", 0.95),
    ("TOP_K", "50", f"{ROLLOUT}.top_k", 50),
    ("VAL_N", "3", f"{ROLLOUT}.val_kwargs.n", 3),
    ("VAL_TEMPERATURE", "0.4", f"{ROLLOUT}.val_kwargs.temperature", 0.4),
    ("VAL_TOP_P", "0.85", f"{ROLLOUT}.val_kwargs.top_p", 0.85),
    ("VAL_TOP_K", "30", f"{ROLLOUT}.val_kwargs.top_k", 30),
    ("ROLLOUT_NTP_SIZE", "2", f"{ROLLOUT}.tensor_model_parallel_size", 2),
    ("GPU_MEMORY_UTIL", "0.55", f"{ROLLOUT}.gpu_memory_utilization", 0.55),
    ("ENABLE_THINKING", "False", "data.apply_chat_template_kwargs.enable_thinking", False),
    ("MASTER_PORT", "29511", "trainer.master_port", 29511),
    ("RUN_ID", "my-run", "trainer.experiment_name", "my-run"),
    ("OUTPUT_ROOT", "/results", "trainer.default_local_dir", "/results/my-run/checkpoints"),
]
TRAINS = [
    ("LEARNING_RATE", "2e-6", f"{ACTOR}.optim.lr", 2e-6),
    ("TOTAL_EPOCHS", "4", "trainer.total_epochs", 4),
    ("SAVE_FREQ", "11", "trainer.save_freq", 11),
    ("TEST_FREQ", "7", "trainer.test_freq", 7),
]
MATH = [("DATA_DIR", "/data", "data.train_files", ["/data/grpo_processed/train.parquet"])]
DISTILS = [
    ("VAL_BEFORE_TRAIN", "True", "trainer.val_before_train", True),
    ("TEACHER_MODEL_PATH", "/models/teacher", "teacher.path", "/models/teacher"),
    ("OPD_LOSS_TYPE", "jsd", "opd.loss_type", "jsd"),
    ("OPD_CHUNK_SIZE", "128", "opd.chunk_size", 128),
    ("OPD_MAX_LENGTH", "5000", "opd.max_length", 5000),
    ("OPD_REWARD_BETA", "0.5", "opd.reward_beta", 0.5),
    ("USE_DYNAMIC_BSZ", "True", f"{ACTOR}.use_dynamic_bsz", True),
]
VARIABLES = {
    "opd": [*SAMPLES, *TRAINS, *MATH, *DISTILS],
    "opd-agent": [
        *SAMPLES,
        *TRAINS,
        *DISTILS,
        ("DATA_DIR", "/data", "data.train_files", ["/data/agent_processed/train.parquet"]),
        ("DATABASE_DIR", "/databases/travel", "agent.database_dir", "/databases/travel"),
        ("ENABLE_TOOLS", "False", f"{ROLLOUT}.multi_turn.enable", False),
        ("MAX_ASSISTANT_TURNS", "7", f"{ROLLOUT}.multi_turn.max_assistant_turns", 7),
        ("MAX_TOOL_RESPONSE_LENGTH", "333", f"{ROLLOUT}.multi_turn.max_tool_response_length", 333),
        ("TOOL_FORMAT", "qwen3_coder", f"{ROLLOUT}.multi_turn.format", "qwen3_coder"),
        ("TOOL_CONFIG_PATH", "/tools.yaml", f"{ROLLOUT}.multi_turn.tool_config_path", "/tools.yaml"),
        ("AGENT_NUM_WORKERS", "3", f"{ROLLOUT}.agent.num_workers", 3),
        ("TRAIN_RATIO", "0.5", "data.train_ratio", 0.5),
        ("REWARD_FN_PATH", "/plan.py", "reward.custom_reward_function.reward_kwargs.function", "/plan.py:compute_score"),
    ],
    "grpo": [
        *SAMPLES,
        *TRAINS,
        *MATH,
        ("VAL_BEFORE_TRAIN", "False", "trainer.val_before_train", False),
        ("USE_DYNAMIC_BSZ", "False", f"{ACTOR}.use_dynamic_bsz", False),
        ("KL_LOSS_COEF", "0.002", f"{ACTOR}.kl_loss_coef", 0.002),
        ("KL_LOSS_TYPE", "k3", f"{ACTOR}.kl_loss_type", "k3"),
        ("CLIP_RATIO_LOW", "0.1", f"{ACTOR}.clip_ratio_low", 0.1),
        ("CLIP_RATIO_HIGH", "0.3", f"{ACTOR}.clip_ratio_high", 0.3),
        ("CLIP_RATIO_C", "5", f"{ACTOR}.clip_ratio_c", 5.0),
        ("LOSS_AGG_MODE", "seq-mean-token-mean", f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean"),
        ("ENTROPY_COEFF", "0.01", f"{ACTOR}.entropy_coeff", 0.01),
        ("DAPO_TRAIN_RATIO", "0.7", "data.train_ratio", 0.7),
    ],
    "eval": [
        *SAMPLES,
        ("DATA_DIR", "/data", "data.val_files", [f"/data/eval_processed/dapo/val_{name}.parquet" for name in ("math500", "aime24", "aime25")]),
        ("INSTRUCTION_VARIANT", "dapo", "eval.instruction_variant", "dapo"),
        ("REWARD_FUNCTION", "math_verify", "reward.custom_reward_function.reward_kwargs.function", "math_verify"),
    ],
    "convert": [("CHECKPOINT_PATH", "/runs/global_step_54/actor", "convert.checkpoint", "/runs/global_step_54/actor")],
}  # fmt: skip
ROWS = [(kind, *row) for kind, rows in VARIABLES.items() for row in rows]


def under_all_variables(kind: str):
    return dry_run(FILES[kind], **{name: text for name, text, _, _ in VARIABLES[kind]})


@pytest.mark.parametrize(("kind", "name", "text", "key", "value"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_a_variable_sets_its_key(kind, name, text, key, value):
    started = under_all_variables(kind)
    assert started.code == 0, started.err
    assert started.values[key] == value
    assert name in started.keys
    assert dry_run(FILES[kind]).values.get(key) != value, "the default is another value, so the variable set this one"


def test_a_start_prints_every_variable_that_it_applied():
    for kind, rows in VARIABLES.items():
        assert under_all_variables(kind).keys.keys() == {name for name, *_ in rows}


def test_the_scripts_name_of_the_tensor_parallel_size_counts_too():
    started = dry_run("kind: opd\n", MODEL_PATH="m", TEACHER_MODEL_PATH="t", TP_SIZE="4", OPD_REWARD_BETA="")
    assert started.code == 0, started.err
    assert started.values[f"{ROLLOUT}.tensor_model_parallel_size"] == 4
    assert "OPD_REWARD_BETA" not in started.keys, "an empty variable is an unset one, as in the scripts"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("kind: opd\n", {"model.path", "teacher.path"}),
        ("kind: opd-agent\n", {"model.path", "teacher.path"}),
        ("kind: opd-agent\nmodel: {path: m}\nteacher: {path: t}\n", {"agent.database_dir"}),
        ("kind: convert\n", {"convert.checkpoint"}),
    ],
)
def test_what_a_script_requires_is_required(text, missing):
    started = dry_run(text)
    assert started.code == 2
    named = {line.strip() for line in started.err.splitlines() if line.startswith("  ") and not line.startswith("   ")}
    assert named == missing


def test_the_file_gives_way_to_a_variable_and_a_variable_to_set():
    text = FILES["opd"] + "actor: {learning_rate: 1e-5}\ndata: {train_batch_size: 128, max_prompt_length: 512}\n"
    sets = ("--set", "actor.learning_rate=3e-6")
    values = dry_run(text, *sets, LEARNING_RATE="2e-6", TRAIN_BATCH_SIZE="192").values
    assert values["data.max_prompt_length"] == 512
    assert values["data.train_batch_size"] == 192
    assert values[f"{ACTOR}.optim.lr"] == 3e-6


def test_a_variable_of_a_wrong_value_ends_the_start_with_exit_code_2():
    wrong = {"OPD_LOSS_TYPE": "kl", "OPD_CHUNK_SIZE": "0", "OPD_REWARD_BETA": "-1", "TRAIN_BATCH_SIZE": "many"}
    started = dry_run(FILES["opd"], **wrong)
    assert started.code == 2
    for name, value in wrong.items():
        [at] = [number for number, line in enumerate(started.err.splitlines()) if name in line]
        assert value in started.err.splitlines()[at + 1]
    for divergence in ("reverse_kl", "forward_kl", "jsd"):
        assert f"'{divergence}'" in started.err


def test_a_row_longer_than_opd_max_length_is_refused():
    """The original cuts such a row in silence."""
    started = dry_run(FILES["opd"], OPD_MAX_LENGTH="10239")
    assert started.code == 2
    assert "opd.max_length" in started.err
    assert dry_run(FILES["opd"], OPD_MAX_LENGTH="10240").code == 0


# The scripts' defaults: (key, then a value for each of grpo, native, native-no-kl, opd, opd-agent, eval).
KINDS = ("grpo", "native", "native-no-kl", "opd", "opd-agent", "eval")
DEFAULTS = [
    ("data.train_batch_size", 512, 512, 512, 256, 256, 64),
    (f"{ACTOR}.ppo_mini_batch_size", 128, 128, 128, 64, 64, 16),
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu", 4, 4, 4, 4, 4, 2),
    ("data.max_prompt_length", 2048, 2048, 2048, 2048, 4096, 2048),
    ("data.max_response_length", 8192, 8192, 8192, 8192, 24576, 16384),
    (f"{ROLLOUT}.n", 8, 8, 8, 1, 1, 8),
    (f"{ROLLOUT}.val_kwargs.n", 16, 16, 16, 16, 16, 16),
    (f"{ROLLOUT}.val_kwargs.temperature", 0.7, 0.7, 0.7, 0.6, 0.6, 0.7),
    (f"{ROLLOUT}.val_kwargs.top_p", 0.8, 0.8, 0.8, 0.8, 0.8, 0.8),
    (f"{ROLLOUT}.val_kwargs.top_k", 20, 20, 20, 20, 20, 20),
    (f"{ROLLOUT}.temperature", 1, 1, 1, 1, 1, 1),
    (f"{ROLLOUT}.top_p", 1, 1, 1, 1, 1, 1),
    (f"{ROLLOUT}.top_k", -1, -1, -1, -1, -1, -1),
    (f"{ROLLOUT}.tensor_model_parallel_size", 1, 1, 1, 1, 1, 1),
    (f"{ROLLOUT}.gpu_memory_utilization", 0.7, 0.7, 0.7, 0.7, 0.7, 0.7),
    ("trainer.total_epochs", 15, 15, 15, 15, 15, 0),
    ("trainer.save_freq", 20, 20, 20, 20, 20, -1),
    ("trainer.test_freq", 5, 5, 5, 5, 5, -1),
    ("trainer.val_before_train", True, True, True, False, False, True),
    (f"{ACTOR}.optim.lr", *[1e-6] * 6),
    (f"{ACTOR}.optim.weight_decay", *[0.1] * 6),
    (f"{ACTOR}.optim.lr_warmup_steps", *[0] * 6),
    (f"{ACTOR}.grad_clip", *[1] * 6),
    ("actor_rollout_ref.model.enable_gradient_checkpointing", *[True] * 6),
    ("data.filter_overlong_prompts", *[True] * 6),
    ("data.truncation", *["left"] * 6),
    ("data.return_raw_chat", *[True] * 6),
    ("data.apply_chat_template_kwargs.enable_thinking", *[True] * 6),
    ("trainer.logger", *[["console"]] * 6),
]


@pytest.mark.parametrize(
    ("key", "value_of"),
    [(key, dict(zip(KINDS, values, strict=True))) for key, *values in DEFAULTS],
    ids=[row[0] for row in DEFAULTS],
)
def test_a_default_is_the_scripts_default(key, value_of):
    assert {kind: dry_run(FILES[kind]).values[key] for kind in KINDS} == value_of


def test_without_thinking_validation_samples_at_the_scripts_other_temperature():
    assert (
        dry_run(FILES["opd"], "--set", "data.enable_thinking=false").values[f"{ROLLOUT}.val_kwargs.temperature"] == 0.7
    )


def test_data_are_looked_for_below_the_folder_data():
    math = [f"data/grpo_processed/val_{name}.parquet" for name in ("math500", "aime24", "aime25")]
    travel = [f"data/agent_processed/val_travel_{language}.parquet" for language in ("en", "zh")]
    expected = {
        "grpo": ["data/grpo_processed/val_dapo.parquet", *math],
        "native": ["data/grpo_processed/val_dapo.parquet", *math],
        "native-no-kl": math,
        "opd": math,
        "opd-agent": travel,
        "eval": [f"data/eval_processed/boxed/val_{name}.parquet" for name in ("math500", "aime24", "aime25")],
    }
    assert {kind: dry_run(FILES[kind]).values["data.val_files"] for kind in KINDS} == expected
    for kind in ("grpo", "native", "native-no-kl", "opd"):
        assert dry_run(FILES[kind]).values["data.train_files"] == ["data/grpo_processed/train.parquet"]
