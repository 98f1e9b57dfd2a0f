"""The rewards package beside verl: light by itself, and loadable by verl's own loader."""

import asyncio
import inspect
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_scoring_with_verls_scorers_imports_neither_verl_nor_torch_nor_ray():
    program = (
        "import sys; from opd.rewards.entry import compute_score\n"
        "for function in ('exact_match', 'math_reward', 'math_dapo', 'math_verify'):\n"
        "    assert compute_score('x', 'Answer: $42$', '42', function=function, timeout_s=60)['failed'] == 0\n"
        "print([name for name in ('verl', 'torch', 'ray', 'math_verify', 'sympy') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])
def test_verl_loads_the_entry_and_passes_our_options(name):
    omegaconf = pytest.importorskip("omegaconf")
    reward = pytest.importorskip("verl.trainer.ppo.reward")
    config = omegaconf.OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {
                    "path": "pkg://opd.rewards.entry",
                    "name": name,
                    "reward_kwargs": {"function": "math_dapo", "timeout_s": 5.0, "strict_box": True},
                }
            }
        }
    )
    function = reward.get_custom_reward_fn(config)
    arguments = {"data_source": "aime24", "solution_str": r"\boxed{42}", "ground_truth": "42", "extra_info": {}}
    awaited = inspect.iscoroutinefunction(function)  # how verl's reward managers choose between await and a thread
    assert awaited == (name == "compute_score_async")
    row = asyncio.run(function(**arguments)) if awaited else function(**arguments)
    assert row == {"score": 1.0, "acc": 1.0, "pred": "42", "failed": 0}
