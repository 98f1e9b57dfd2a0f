"""The overrides of each kind: what is in them, in a stable order, and that the same spec gives the same lines everywhere."""

from pathlib import Path

import pytest

from opd.config import load_spec, parse_tree
from opd.config.run_config import RunConfig, RunFacts
from opd.config.verl import compute_overrides

EXAMPLES = [
    p for p in sorted((Path(__file__).parents[1] / "config" / "examples").glob("*.yaml")) if p.stem != "convert"
]
OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}}
GRPO = {"kind": "grpo", "model": {"path": "m"}}
EVAL = {"kind": "eval", "model": {"path": "m"}}


def facts(**changes):
    return RunFacts(**({"run_id": "r", "run_dir": "/runs/r"} | changes))


def lines_of(tree, **changes):
    return compute_overrides(parse_tree(tree).spec, run=facts(**changes))


def overrides_of(tree, **changes):
    return dict(line.split("=", 1) for line in lines_of(tree, **changes))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_key_is_written_twice(path):
    lines = compute_overrides(load_spec(path).spec, run=facts())
    keys = [line.split("=", 1)[0].lstrip("+") for line in lines]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "uni"),
        ({"rollout": {"tensor_parallel_size": 2}, "trainer": {"gpus_per_node": 2}}, None),
        # Its decode batch is always full: verl's own "mp".
        ({"rollout": {"schedule": "carry"}}, None),
        ({"rollout": {"engine_kwargs": {"distributed_executor_backend": "mp"}}}, "mp"),
        ({"overrides": ["++actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp"]}, "mp"),
        # Servers of two GPUs, by keys that the spec does not have: verl's own "mp".
        ({"overrides": ["++actor_rollout_ref.rollout.pipeline_model_parallel_size=2"]}, None),
        ({"device": "cpu"}, None),
    ],
)
def test_a_vllm_server_of_one_gpu_has_its_worker_in_the_engines_process_unless_it_carries_or_the_spec_says_otherwise(
    changes, expected
):
    found = {key: value for key, value in overrides_of(OPD | changes).items() if "distributed_executor_backend" in key}
    key = "++actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend"
    assert found == ({} if expected is None else {key: expected})


@pytest.mark.parametrize("tree", [OPD | {"device": "cpu", "env": {"A": "b"}}, GRPO])
def test_in_a_ray_cluster_only_the_sizes_of_ray_init_are_left_out(tree):
    alone, inside = lines_of(tree), lines_of(tree, in_ray_cluster=True)
    left_out = [line for line in alone if line not in inside]
    assert [line for line in alone if line in inside] == inside
    assert left_out
    assert all(line.lstrip("+").startswith("ray_kwargs.ray_init.") for line in left_out)
    assert not any("num_cpus" in line or "num_gpus" in line or "object_store" in line for line in inside)


def test_the_run_seed_seeds_every_part():
    found = overrides_of(OPD | {"seed": 7})
    seeds = {key: value for key, value in found.items() if key.rpartition(".")[2] in {"seed", "data_loader_seed"}}
    assert set(seeds) == {
        "data.seed",
        "actor_rollout_ref.rollout.seed",
        "actor_rollout_ref.actor.data_loader_seed",
        "actor_rollout_ref.actor.fsdp_config.seed",
        "actor_rollout_ref.ref.fsdp_config.seed",
    }
    assert set(seeds.values()) == {"7"}


def test_what_is_ours_is_no_override():
    tree = OPD | {"opd": {"loss_type": "jsd", "reward_beta": 0.5}, "rollout": {"num_samples": 2}}
    found = overrides_of(tree | {"overrides": ["opd.chunk_size=64"]})
    assert not any(key.lstrip("+").startswith("opd.") for key in found)
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "false"


def test_what_is_left_to_the_plan_is_offloaded_until_it_is_made():
    found = overrides_of(OPD | {"actor": {"optimizer_offload": False}})
    assert found["actor_rollout_ref.actor.fsdp_config.param_offload"] == "true"
    assert found["actor_rollout_ref.actor.fsdp_config.optimizer_offload"] == "false"


def test_pass_rates_are_asked_for_in_parts_that_a_killed_run_keeps():
    found = overrides_of(EVAL | {"kind": "passrate", "data": {"train": ["t.parquet"], "train_batch_size": 32}})
    assert (found["trainer.val_only"], found["data.val_batch_size"]) == ("true", "32")
    assert "t.parquet" in found["data.val_files"]
    assert "data.val_batch_size" not in overrides_of(EVAL)


@pytest.mark.parametrize(("temperature", "samples"), [(0, "false"), (0.7, "true")])
def test_greedy_validation_is_temperature_zero(temperature, samples):
    found = overrides_of(OPD | {"rollout": {"val": {"temperature": temperature, "num_samples": 1}}})
    assert found["actor_rollout_ref.rollout.val_kwargs.do_sample"] == samples
    assert float(found["actor_rollout_ref.rollout.val_kwargs.temperature"]) == temperature


@pytest.mark.parametrize(
    ("reward", "function"),
    [({"function": "math_verify"}, "math_verify"), ({"path": "my/fn.py", "entry": "score"}, "'my/fn.py:score'")],
)
def test_the_reward_function_is_called_through_our_entry(reward, function):
    found = overrides_of(OPD | {"reward": reward})
    assert found["reward.custom_reward_function.path"] == "'pkg://opd.rewards.entry'"
    assert found["++reward.custom_reward_function.reward_kwargs.function"] == function


def test_a_raw_override_stands_last_and_replaces_a_computed_line_of_its_key():
    raw = ["+trainer.extra=1", "algorithm.adv_estimator=rloo"]
    lines = lines_of(OPD | {"overrides": raw})
    assert lines[-2:] == raw
    assert "algorithm.adv_estimator=grpo" not in lines


@pytest.mark.parametrize(
    ("modules", "text"), [(["all-linear"], "all-linear"), (["q_proj", "up_proj"], "[q_proj,up_proj]")]
)
def test_adapters_are_asked_for_in_verls_words_and_served_merged(modules, text):
    found = overrides_of(OPD | {"model": {"path": "m", "lora": {"rank": 8, "alpha": 32, "target_modules": modules}}})
    keys = ("lora_rank", "lora_alpha", "target_modules", "lora.merge")
    assert [found[f"actor_rollout_ref.model.{key}"] for key in keys] == ["8", "32", text, "true"]


@pytest.mark.parametrize(
    ("variant", "function"), [("boxed", "math_reward"), ("dapo", "math_dapo"), ("none", "math_verify")]
)
def test_an_evaluation_scores_by_its_instruction(variant, function):
    found = overrides_of(EVAL | {"eval": {"instruction_variant": variant}})
    assert found["++reward.custom_reward_function.reward_kwargs.function"] == function


@pytest.mark.parametrize("path", ["Qwen/Qwen3-8B", "models/no-think-instruct"])
@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_what_the_spec_says_for_every_model(path, thinking):
    found = overrides_of(OPD | {"model": {"path": path}, "data": {"enable_thinking": thinking}})
    assert found["++data.apply_chat_template_kwargs.enable_thinking"] == str(thinking).lower()
    assert found["actor_rollout_ref.rollout.val_kwargs.temperature"] == ("0.6" if thinking else "0.7")


def test_local_folders_of_fetched_models_replace_their_ids():
    found = overrides_of(OPD, model_path="/cache/m", teacher_paths={"teacher": "/cache/t"})
    assert found["actor_rollout_ref.model.path"] == "/cache/m"
    assert RunConfig(spec=parse_tree(OPD).spec, run=facts(teacher_paths={"teacher": "/cache/t"})).teacher_paths == {
        "teacher": "/cache/t"
    }


def test_the_environment_of_the_run_reaches_every_ray_process():
    found = overrides_of(OPD | {"env": {"NCCL_DEBUG": "INFO", "B": "it's ${x}"}}, in_ray_cluster=True)
    assert found["++ray_kwargs.ray_init.runtime_env.env_vars.NCCL_DEBUG"] == "INFO"
    assert "\\'" in found["++ray_kwargs.ray_init.runtime_env.env_vars.B"]
