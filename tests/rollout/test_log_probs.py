"""Log-probabilities of rollouts are asked for in the steps that something reads them in, and in no others."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from opd.rollout.log_probs import asks_log_probs


def _steps(every: int, *, configured: bool = True, **correction) -> list[int]:
    tree = {
        "actor_rollout_ref": {"rollout": {"calculate_log_probs": configured}},
        "algorithm": {
            "rollout_correction": {"bypass_mode": False, "rollout_is": None, "rollout_rs": None} | correction
        },
    }
    config = OmegaConf.create(tree)
    return [step for step in range(1, 9) if asks_log_probs(config, every=every, step=step)]


def test_the_first_step_asks_and_from_it_on_every_kth():
    assert _steps(3) == [1, 4, 7]
    assert _steps(1) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert _steps(100) == [1]


@pytest.mark.parametrize("correction", [{"bypass_mode": True}, {"rollout_is": "token"}, {"rollout_rs": "sequence"}])
def test_a_correction_that_reads_them_in_the_loss_has_them_in_every_step(correction):
    assert _steps(3, **correction) == [1, 2, 3, 4, 5, 6, 7, 8]
