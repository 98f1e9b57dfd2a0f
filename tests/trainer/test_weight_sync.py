"""The weights' way from ranks to servers, by verl's manager with its `naive` backend."""

import pytest
import verl.checkpoint_engine.base as engines
from verl.workers.config import CheckpointEngineConfig

from opd.job import Job


class _Ranks:
    """A worker group that notes its calls."""

    def __init__(self):
        self.calls = []

    def update_weights(self, **settings):
        self.calls.append(settings)
        return []


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(engines.ray, "get", lambda futures: futures)
    job = Job.__new__(Job)
    job.ranks, job._serves = _Ranks(), True
    job._weights = engines.CheckpointEngineManager(CheckpointEngineConfig(backend="naive"), job.ranks, replicas=[])
    return job


def test_the_ranks_hand_their_weights_to_the_servers_themselves_with_the_steps_number(job):
    # With any other backend verl opens ports and a process group between ranks and servers.
    job.send_weights(3)
    assert job.ranks.calls == [{"global_steps": 3, "mode": "naive"}]


def test_a_run_without_servers_sends_nothing(job):
    job._serves = False
    job.send_weights(3)
    assert job.ranks.calls == []
