"""verl's overrides of a spec; tests/golden has every shipped experiment, byte for byte."""

import pytest
from tests.golden import experiments

from opd.experiment import parse_tree
from opd.experiment.run_config import RunConfig, RunFacts
from opd.experiment.verl import compute_overrides

OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}}
GRPO = {"kind": "grpo", "model": {"path": "m"}}
EVAL = {"kind": "eval", "model": {"path": "m"}}
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
SCORER = "++reward.custom_reward_function.reward_kwargs.function"
BACKEND = f"++{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend"
ENV = "++ray_kwargs.ray_init.runtime_env.env_vars"


def facts(**changes):
    return RunFacts(**({"run_id": "r", "run_dir": "/runs/r"} | changes))


def lines_of(tree, **changes):
    return compute_overrides(parse_tree(tree).spec, run=facts(**changes))


def overrides_of(tree, **changes):
    return dict(line.split("=", 1) for line in lines_of(tree, **changes))


def lora(*modules):
    return {"model": {"path": "m", "lora": {"rank": 8, "target_modules": modules}}}


@pytest.mark.parametrize(
    ("tree", "changes", "key", "value"),
    [
        (OPD, {}, BACKEND, "uni"),
        (OPD, {"rollout": {"tensor_parallel_size": 2}, "trainer": {"gpus_per_node": 2}}, BACKEND, None),
        # Its decode batch is always full: verl's own "mp".
        (OPD, {"rollout": {"schedule": "carry"}}, BACKEND, None),
        (OPD, {"rollout": {"engine_kwargs": {"distributed_executor_backend": "mp"}}}, BACKEND, "mp"),
        (OPD, {"overrides": [f"{BACKEND}=mp"]}, BACKEND, "mp"),
        (OPD, {"device": "cpu"}, BACKEND, None),
        (OPD, {"opd": {"loss_type": "jsd"}}, f"{ACTOR}.use_kl_loss", "false"),
        (OPD, {"actor": {"optimizer_offload": False}}, f"{ACTOR}.fsdp_config.param_offload", "true"),
        (OPD, {"rollout": {"val": {"temperature": 0}}}, f"{ROLLOUT}.val_kwargs.do_sample", "false"),
        (OPD, {"rollout": {"val": {"temperature": 0.7}}}, f"{ROLLOUT}.val_kwargs.do_sample", "true"),
        (OPD, {}, "reward.custom_reward_function.path", "'pkg://opd.rewards'"),
        (OPD, {"reward": {"path": "my/fn.py", "entry": "score"}}, SCORER, "'my/fn.py:score'"),
        (GRPO, {}, SCORER, "math_reward"),
        (EVAL, {"eval": {"instruction_variant": "dapo"}}, SCORER, "math_dapo"),
        (EVAL, {"kind": "passrate", "data": {"train_batch_size": 32}}, "data.val_batch_size", "32"),
        (OPD, lora("all-linear"), f"{MODEL}.target_modules", "all-linear"),
        (OPD, lora("q_proj", "up_proj"), f"{MODEL}.target_modules", "[q_proj,up_proj]"),
        (OPD, lora("q_proj"), f"{MODEL}.lora.merge", "true"),
        (OPD, {"env": {"A": "it's ${x}"}}, f"{ENV}.A", r"'it\'s \${x}'"),
        # Left truncation would cut the system prompt and the instruction first.
        (OPD, {"data": {"filter_overlong": False}}, "data.truncation", "error"),
        (OPD, {"data": {"enable_thinking": False}}, "++data.apply_chat_template_kwargs.enable_thinking", "false"),
    ],
)
def test_an_override_follows_from_the_spec(tree, changes, key, value):
    assert overrides_of(tree | changes).get(key) == value


@pytest.mark.parametrize("tree", [OPD | {"device": "cpu", "env": {"A": "b"}}, GRPO])
def test_in_a_ray_cluster_only_the_sizes_of_ray_init_are_left_out(tree):
    alone, inside = lines_of(tree), lines_of(tree, in_ray_cluster=True)
    left_out = [line for line in alone if line not in inside]
    assert [line for line in alone if line in inside] == inside
    assert left_out
    assert all(line.lstrip("+").startswith("ray_kwargs.ray_init.") for line in left_out)


def test_a_raw_override_comes_last_and_replaces_a_computed_line_of_its_key():
    raw = ["+trainer.extra=1", "algorithm.adv_estimator=rloo"]
    lines = lines_of(OPD | {"overrides": ["opd.chunk_size=64", *raw]})
    assert lines[-2:] == raw
    assert "algorithm.adv_estimator=grpo" not in lines
    assert not any(line.lstrip("+").startswith("opd.") for line in lines)


def test_local_folders_of_fetched_models_replace_their_ids():
    fetched = {"model_path": "/cache/m", "teacher_paths": {"teacher": "/cache/t"}}
    assert overrides_of(OPD, **fetched)[f"{MODEL}.path"] == "/cache/m"
    ours = RunConfig(spec=parse_tree(OPD).spec, run=facts(**fetched))
    assert ours.teacher_paths == {"teacher": "/cache/t"}


@pytest.mark.slow
def test_verls_overrides_equal_the_golden_ones(tmp_path):
    experiments.check(experiments.overrides, experiments.GOLDEN / "overrides", tmp_path)
