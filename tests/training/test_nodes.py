"""A start waits for the devices that the run needs, and says what it lacks."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from opd.training import nodes
from opd.training.errors import TooFewNodes


@pytest.fixture
def config():
    return OmegaConf.create({"trainer": {"nnodes": 2, "n_gpus_per_node": 4}})


def cluster(monkeypatch, *looks):
    """Free devices by node, one list a look; the last one stays."""
    looks = [[{"CPU": 8.0, **({"GPU": float(free)} if free else {})} for free in look] for look in looks]
    monkeypatch.setattr(nodes, "DEVICE_POLL_S", 0.0)
    monkeypatch.setattr(
        nodes, "available_resources_per_node", lambda: dict(enumerate(looks.pop(0) if len(looks) > 1 else looks[0]))
    )


def test_a_cluster_that_has_its_devices_is_not_waited_for(config, monkeypatch, capsys):
    cluster(monkeypatch, [0, 4, 8])
    nodes.wait_for_devices(config, timeout_s=0)
    assert capsys.readouterr().out == ""


def test_workers_that_join_late_and_devices_that_an_earlier_attempt_still_holds_are_waited_for(
    config, monkeypatch, capsys
):
    cluster(monkeypatch, [0], [0, 4], [0, 4], [0, 4, 3], [0, 4, 4])
    nodes.wait_for_devices(config, timeout_s=60)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "waiting for 0 of 2 nodes with 4 free devices (free now: [0])"
    assert len(said) == 3, "the same line is not said twice"


def test_devices_on_too_many_nodes_are_too_few(config, monkeypatch):
    cluster(monkeypatch, [2, 2, 2, 2])
    with pytest.raises(TooFewNodes, match=r"0 of 2 nodes with 4 free devices .* trainer\.nnodes"):
        nodes.wait_for_devices(config, timeout_s=0)
