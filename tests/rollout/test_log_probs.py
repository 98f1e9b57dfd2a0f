"""Log-probabilities of rollouts are asked for in every so many steps, from the first on."""

from __future__ import annotations

from omegaconf import OmegaConf

from opd.rollout.log_probs import asks_log_probs


def test_the_first_step_asks_and_from_it_on_every_kth():
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"calculate_log_probs": True}}})
    asked = {
        every: [step for step in range(1, 9) if asks_log_probs(config, every=every, step=step)] for every in (1, 3, 100)
    }
    assert asked == {1: [1, 2, 3, 4, 5, 6, 7, 8], 3: [1, 4, 7], 100: [1]}
