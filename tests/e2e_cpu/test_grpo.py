"""Reinforcement learning through verl's own losses, with our rollout, order and counts."""

import pytest
from tests.e2e_cpu.runs import run


@pytest.mark.parametrize(
    "recipe",
    [
        "grpo",
        "grpo-native",
        "grpo-native-no-kl",
    ],
)
def test_each_recipe_trains(tmp_path, recipe):
    sets = (f"recipe={recipe}", "trainer.total_steps=2", "rollout.logprobs_every=2")
    outcome = run(tmp_path, "grpo", *sets).must_be_clean()
    steps = outcome.steps
    assert [row["training/global_step"] for row in steps] == [1, 2]
    for row in steps:
        assert row["rollout/trajectories"] == 16 * 4
        assert row["rollout/failed"] == 0
        assert ("actor/kl_loss" in row) == (recipe == "grpo-native")
        assert row.get("training/rollout_probs_diff_max", 0.0) < 1e-5
    assert ["training/rollout_probs_diff_max" in row for row in steps] == [True, False]
