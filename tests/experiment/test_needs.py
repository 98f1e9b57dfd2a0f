"""CPUs of a node follow from a run's sizes, by verl's own reservations."""

from tests.minimal import MINIMAL

from opd.experiment import parse_tree
from opd.experiment.pipeline import all_sizes


def test_a_node_needs_three_cpus_a_rank_and_a_conversion_has_no_workers():
    stages = {"wide": {**MINIMAL["opd"], "trainer": {"nnodes": 2, "gpus_per_node": 2}}, "last": MINIMAL["convert"]}
    [sizes] = all_sizes(parse_tree({"kind": "pipeline", "name": "p", "stages": stages}).spec)
    assert (sizes.num_nodes, sizes.gpus_per_node, sizes.node_cpus) == (2, 2, 6)
