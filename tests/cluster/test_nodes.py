"""A start waits for the devices and CPUs that the run needs, and says which node lacks what."""

from __future__ import annotations

import pytest

from opd.cluster import nodes
from opd.cluster.places import needed
from opd.errors import TooFewNodes
from opd.experiment.pipeline import Sizes

# A node needs 4 GPUs and 3 x 4 = 12 CPUs.
SIZES = Sizes(device="cuda", num_nodes=2, gpus_per_node=4)
NEEDED = "2 nodes with 4 GPUs and 12 CPUs for its ranks"


def cluster(monkeypatch, *looks, total=None):
    """What is free, one list of (CPUs, GPUs) by node a look; the last one stays. `total`: what the nodes have, else the same."""
    looks = list(looks)
    whole = total or max(looks, key=len)
    monkeypatch.setattr(nodes, "POLL_S", 0.0)
    now = []

    def alive():
        now[:] = looks.pop(0) if len(looks) > 1 else looks[0]
        return [
            {"Alive": True, "NodeID": f"id{i}", "NodeManagerAddress": f"10.0.0.{i}", "Resources": table(*whole[i])}
            for i in range(len(now))
        ]

    monkeypatch.setattr(nodes.ray, "nodes", alive)
    monkeypatch.setattr(
        nodes, "available_resources_per_node", lambda: {f"id{i}": table(*free) for i, free in enumerate(now)}
    )


def table(cpus, gpus):
    """A node as Ray shows it: what it has none of is left out."""
    return {key: float(amount) for key, amount in (("CPU", cpus), ("GPU", gpus)) if amount}


def test_a_run_on_cpus_is_not_said_to_need_gpus():
    assert needed(SIZES._replace(device="cpu")).startswith("12 CPUs")


def test_a_cluster_that_has_what_is_needed_is_not_waited_for(monkeypatch, capsys):
    cluster(monkeypatch, [(0, 0), (12, 4), (64, 8)])
    nodes.wait_for_nodes(SIZES, timeout_s=0)
    assert capsys.readouterr().out == ""


def test_workers_that_join_late_and_devices_that_an_earlier_attempt_still_holds_are_waited_for(monkeypatch, capsys):
    head, free, held = (0, 0), (12, 4), (3, 3)
    cluster(monkeypatch, [head], [head, free], [head, free], [head, free, held], [head, free, free])
    nodes.wait_for_nodes(SIZES, timeout_s=60)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("waiting for nodes, free now: 0 of 2 nodes with 4 GPUs and 12 CPUs")
    assert "10.0.0.2 (id2) 3 GPUs, 3 CPUs" in said[-1]
    assert len(said) == 3, "the same line is not said twice"


def test_devices_on_too_many_nodes_are_too_few(monkeypatch):
    cluster(monkeypatch, [(16, 2)] * 4)
    with pytest.raises(
        TooFewNodes, match=r"0 of 2 nodes with 4 GPUs .* 10\.0\.0\.3 \(id3\) 2 GPUs, 16 CPUs .* trainer\.gpus_per_node"
    ):
        nodes.wait_for_nodes(SIZES, timeout_s=0)


def test_one_cpu_less_than_the_ranks_take_ends_the_wait_with_the_number_and_the_node(monkeypatch):
    cluster(monkeypatch, [(0, 0), (12, 4), (11, 4)])
    with pytest.raises(TooFewNodes, match=rf"1 of {NEEDED}; too small: 10\.0\.0\.2 \(id2\) 4 GPUs, 11 CPUs after"):
        nodes.wait_for_nodes(SIZES, timeout_s=600, settle_s=0)


def test_nodes_that_only_others_keep_busy_are_waited_for_to_the_bound(monkeypatch):
    cluster(monkeypatch, [(12, 4), (1, 4)], [(12, 4), (12, 4)], total=[(12, 4)] * 2)
    nodes.wait_for_nodes(SIZES, timeout_s=600, settle_s=0)


def test_a_large_node_holds_the_ranks_of_two(monkeypatch):
    cluster(monkeypatch, [(24, 8)])
    nodes.wait_for_nodes(SIZES, timeout_s=0)
    cluster(monkeypatch, [(23, 8)])
    with pytest.raises(TooFewNodes):
        nodes.wait_for_nodes(SIZES, timeout_s=0)
