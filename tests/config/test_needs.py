"""CPUs of a node follow from a run's sizes, by verl's and the queue's own reservations."""

import pytest

from opd.config import parse_tree
from opd.config.needs import all_sizes

OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}}


@pytest.mark.parametrize(
    ("keys", "cpus"),
    [
        ({}, 24 + 2 + 1),
        ({"trainer": {"nnodes": 4, "gpus_per_node": 8}}, 24 + 2 + 1),
        ({"trainer": {"gpus_per_node": 1}}, 3 + 2 + 1),
        ({"device": "cpu", "trainer": {"nnodes": 2, "gpus_per_node": 4}}, 12 + 1 + 1),
        (
            {
                "overrides": ["++transfer_queue.backend.SimpleStorage.num_data_storage_units=9"],
                "trainer": {"nnodes": 2},
            },
            24 + 5 + 1,
        ),
    ],
)
def test_a_node_needs_three_cpus_a_rank_and_those_of_storage_units_and_controller(keys, cpus):
    [sizes] = all_sizes(parse_tree({**OPD, "actor": {"use_dynamic_bsz": True}, **keys}).spec)
    assert sizes.node_cpus == cpus


def test_a_conversion_has_no_workers_and_a_pipeline_has_those_of_its_stages():
    convert = {"kind": "convert", "convert": {"checkpoint": "c"}}
    stages = {"wide": {**OPD, "trainer": {"nnodes": 2, "gpus_per_node": 2}}, "last": convert}
    assert all_sizes(parse_tree(convert).spec) == []
    [sizes] = all_sizes(parse_tree({"kind": "pipeline", "name": "p", "stages": stages}).spec)
    assert (sizes.num_nodes, sizes.gpus_per_node) == (2, 2)
