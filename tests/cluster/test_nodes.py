"""A start waits for the devices and CPUs that the run needs, and says which node lacks what."""

import pytest

from opd.cluster import nodes
from opd.errors import TooFewNodes
from opd.experiment.pipeline import Sizes

# A node needs 4 GPUs and 3 x 4 = 12 CPUs.
SIZES = Sizes(device="cuda", num_nodes=2, gpus_per_node=4)


@pytest.fixture
def cluster(monkeypatch):
    """Give Ray's answers: the free (CPUs, GPUs) of each node, one list a look; the last one stays."""

    def play(*looks):
        left, now = list(looks), []
        resources = dict(zip(("CPU", "GPU"), (64, 4), strict=True))

        def alive():
            return [
                {"Alive": True, "NodeID": f"id{i}", "NodeManagerAddress": f"10.0.0.{i}", "Resources": resources if i else {}}
                for i in range(len(now))
            ]  # fmt: skip

        def free():
            now[:] = left.pop(0) if len(left) > 1 else left[0]
            pairs = {f"id{i}": zip(("CPU", "GPU"), amounts, strict=True) for i, amounts in enumerate(now)}
            return {node: {name: float(amount) for name, amount in pair if amount} for node, pair in pairs.items()}

        monkeypatch.setattr(nodes, "POLL_S", 0.0)
        monkeypatch.setattr(nodes.ray, "nodes", alive)
        monkeypatch.setattr(nodes, "available_resources_per_node", free)

    return play


HEAD, FREE, HELD = (0, 0), (12, 4), (3, 3)


def test_a_run_on_cpus_needs_no_gpus():
    assert nodes.needed(Sizes(device="cpu", num_nodes=2, gpus_per_node=4)).startswith("12 CPUs")


@pytest.mark.parametrize("free", [[HEAD, FREE, (64, 8)], [HEAD, (24, 8)]], ids=["two", "one for two"])
def test_a_cluster_with_room_is_not_waited_for(cluster, capsys, free):
    cluster(free)
    nodes.wait_for_nodes(SIZES, timeout_s=0)
    assert capsys.readouterr().out == ""


def test_late_workers_and_devices_of_an_earlier_attempt_are_waited_for(cluster, capsys):
    cluster([HEAD], [HEAD, FREE], [HEAD, FREE], [HEAD, FREE, HELD], [HEAD, FREE, FREE])
    nodes.wait_for_nodes(SIZES, timeout_s=60)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("waiting for nodes, free now: 0 of 2 nodes with 4 GPUs and 12 CPUs")
    assert "10.0.0.2 (id2) 3 GPUs, 3 CPUs" in said[-1]
    assert len(said) == 3, "the same line is not said twice"


@pytest.mark.parametrize(
    ("free", "why"),
    [
        ([HEAD, *[(16, 2)] * 4], r"0 of 2 .* 10\.0\.0\.4 \(id4\) 2 GPUs, 16 CPUs after .* trainer\.gpus_per_node"),
        ([HEAD, FREE, (11, 4)], r"1 of 2 nodes .* for its ranks; too small: 10\.0\.0\.2 \(id2\) 4 GPUs, 11 CPUs after"),
        ([HEAD, (23, 8)], "1 of 2 nodes"),
    ],
)
def test_too_few_devices_or_cpus_end_the_wait_with_the_node(cluster, free, why):
    cluster(free)
    with pytest.raises(TooFewNodes, match=why):
        nodes.wait_for_nodes(SIZES, timeout_s=0)
