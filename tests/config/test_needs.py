"""What a run needs of its nodes follows from its sizes, by verl's own reservations."""

from __future__ import annotations

import pytest

from opd.config import parse_tree
from opd.config.needs import needs

OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}}


def worker(**keys):
    return needs(parse_tree({**OPD, "actor": {"use_dynamic_bsz": True}, **keys}).spec).worker


@pytest.mark.parametrize(("num_nodes", "gpus"), [(1, 1), (1, 8), (4, 8), (1, 4)])
def test_a_node_needs_three_cpus_a_rank(num_nodes, gpus):
    found = worker(trainer={"nnodes": num_nodes, "gpus_per_node": gpus})
    assert (found.gpus, found.cpus, found.cpus_by_part) == (gpus, 3 * gpus, f"ranks {3 * gpus}")


def test_workers_take_memory_and_no_cpu():
    none = worker(rollout={"num_agent_workers": 0}, reward={"num_workers": 0})
    some = worker(rollout={"num_agent_workers": 8}, reward={"num_workers": 4})
    assert none.cpus == some.cpus
    assert none.least_gib < some.least_gib < some.memory_gib


def test_a_conversion_needs_a_head_alone():
    found = needs(parse_tree({"kind": "convert", "convert": {"checkpoint": "c"}}).spec)
    assert (found.num_nodes, found.worker) == (0, None)
    assert found.head.memory_gib > needs(parse_tree(OPD).spec).head.memory_gib


def test_a_pipeline_needs_of_each_resource_what_its_most_demanding_stage_does():
    stages = {
        "wide": {**OPD, "actor": {"use_dynamic_bsz": True}, "trainer": {"nnodes": 2, "gpus_per_node": 2}},
        "deep": {**OPD, "rollout": {"num_agent_workers": 0}, "reward": {"num_workers": 0}},
        "busy": {**OPD, "trainer": {"gpus_per_node": 1}, "reward": {"num_workers": 300}},
        "last": {"kind": "convert", "convert": {"checkpoint": "c"}},
    }
    found = needs(parse_tree({"kind": "pipeline", "name": "p", "stages": stages}).spec)
    of = {name: needs(parse_tree(tree).spec) for name, tree in stages.items()}
    assert found.num_nodes == of["wide"].num_nodes == 2
    assert (found.worker.gpus, found.worker.cpus) == (of["deep"].worker.gpus, of["deep"].worker.cpus)
    assert found.worker.cpus_by_part == of["deep"].worker.cpus_by_part
    assert found.worker.memory_gib == of["busy"].worker.memory_gib > of["deep"].worker.memory_gib
    assert found.head == of["last"].head
