"""A save between two steps: the rollout servers have given their memory back, and wake up where the run goes on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from opd.pods import stop
from opd.trainer import trainer as trainers


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A trainer behind step 4 that tells what it is made to do, in order."""
    made = object.__new__(trainers.OrderedTrainer)
    did = []
    made.__dict__ |= {
        "did": did,
        "global_steps": 4,
        "total_training_steps": 9,
        "config": SimpleNamespace(trainer=SimpleNamespace(save_freq=5)),
        "checkpoint_manager": SimpleNamespace(sleep_replicas=lambda: did.append("servers sleep")),
        "run": SimpleNamespace(
            asked_in=tmp_path, hand_over=lambda: did.append("hand over"), take_back=lambda: did.append("take back")
        ),
        "_saved_step": None, "_stop": SimpleNamespace(requested=False),
        "_wait_for_seal": lambda: None, "_seal_saved": lambda: did.append("seal"),
        "_save_checkpoint": lambda: did.append("save"), "on_step_end": lambda: did.append("servers wake"),
    }  # fmt: skip
    monkeypatch.setattr(trainers.lost, "parts_of_lost_nodes", dict)
    return made


def test_servers_sleep_while_a_save_is_asked_for_and_wake_when_the_pod_has_stayed(trainer, tmp_path):
    stop.ask(tmp_path, reason="a drain", hold_s=0.0)
    trainer._serve_requests()
    assert trainer.did == ["servers sleep", "save", "seal", "hand over", "take back", "servers wake"]


def test_a_run_that_is_asked_to_end_leaves_them_asleep(trainer):
    trainer._stop.requested = True
    with pytest.raises(SystemExit):
        trainer._serve_requests()
    assert trainer.did == ["servers sleep", "save", "seal"]


def test_what_needs_no_save_wakes_nobody(trainer, tmp_path):
    trainer._saved_step = 4
    stop.ask(tmp_path, reason="a drain", hold_s=0.0)
    trainer._serve_requests()
    assert trainer.did == ["hand over", "take back"]
