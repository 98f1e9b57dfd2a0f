"""CPUs of a node follow from a run's sizes, by verl's own reservations."""

import pytest

from opd.experiment import parse_tree
from opd.experiment.needs import all_sizes

OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}}


@pytest.mark.parametrize(
    ("keys", "cpus"),
    [({}, 24), ({"trainer": {"nnodes": 4, "gpus_per_node": 8}}, 24), ({"trainer": {"gpus_per_node": 1}}, 3)],
)
def test_a_node_needs_three_cpus_a_rank(keys, cpus):
    [sizes] = all_sizes(parse_tree({**OPD, "actor": {"use_dynamic_bsz": True}, **keys}).spec)
    assert sizes.node_cpus == cpus


def test_a_conversion_has_no_workers_and_a_pipeline_has_those_of_its_stages():
    convert = {"kind": "convert", "convert": {"checkpoint": "c"}}
    stages = {"wide": {**OPD, "trainer": {"nnodes": 2, "gpus_per_node": 2}}, "last": convert}
    assert all_sizes(parse_tree(convert).spec) == []
    [sizes] = all_sizes(parse_tree({"kind": "pipeline", "name": "p", "stages": stages}).spec)
    assert (sizes.num_nodes, sizes.gpus_per_node) == (2, 2)
