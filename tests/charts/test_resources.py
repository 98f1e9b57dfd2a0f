"""Requests and limits: what a file does not give is what the run needs by its sizes, and less is refused with the number."""

import math

import pytest
from tests.charts.helm import head, rayjob, worker
from tests.minimal import MINIMAL

from opd.config import FILE_KINDS, parse_tree
from opd.config.cluster.rules import load_cluster, resources
from opd.config.needs import needs

RUNS = [kind for kind in FILE_KINDS if kind != "convert"]
OPD = MINIMAL["opd"]
SIZES = [
    {},
    {"device": "cpu"},
    {"device": "cpu", "trainer": {"gpus_per_node": 4, "nnodes": 2}},
    {"trainer": {"gpus_per_node": 1}},
    {"trainer": {"nnodes": 2}},
    {"trainer": {"nnodes": 4}, "actor": {"use_dynamic_bsz": True}},
    {"rollout": {"num_agent_workers": 3}, "reward": {"num_workers": 0}, "trainer": {"nnodes": 2, "gpus_per_node": 4}},
    {"overrides": ["+transfer_queue.backend.SimpleStorage.num_data_storage_units=17"], "trainer": {"nnodes": 2}},
    {"overrides": ["transfer_queue.backend.SimpleStorage.total_storage_size=17"]},
]


def asked(container):
    return container["resources"]["requests"], container["resources"]["limits"]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_workers_ask_for_what_the_spec_s_sizes_need(sizes):
    tree = {**OPD, **sizes}
    spec = parse_tree(tree).spec
    needed = needs(spec).worker
    requests, limits = asked(worker(rayjob("opd", tree, experiment="")))
    assert requests["cpu"] == needed.cpus
    assert requests["memory"] == limits["memory"] == f"{math.ceil(needed.memory_gib + 16)}Gi"
    assert "cpu" not in limits


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_head_asks_for_what_its_processes_need(kind):
    needed = needs(parse_tree(MINIMAL[kind]).spec).head
    requests, limits = asked(head(rayjob(kind, MINIMAL[kind], experiment="")))
    assert requests == {"cpu": needed.cpus, "memory": f"{math.ceil(needed.memory_gib + 2)}Gi"}
    assert limits == {"memory": requests["memory"]}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"requests": {"cpu": 40}},
        {"requests": {"memory": "300Gi"}},
        {"limits": {"memory": "300Gi"}},
        {"limits": {"cpu": 64}},
        {"requests": {"cpu": "27500m", "memory": "200Gi"}, "limits": {"memory": "300Gi", "cpu": 64}},
    ],
    ids=str,
)
def test_what_is_given_stands_and_the_rest_follows_it_in_helm_and_tool_alike(given):
    tree = {**OPD, "cluster": {"worker": given}}
    requests, limits = asked(worker(rayjob("opd", tree, experiment="")))
    gpus = {"nvidia.com/gpu": 8}
    spec = parse_tree(OPD).spec
    mine = resources(load_cluster(tree["cluster"], spec).worker, needs(spec).worker)
    assert (requests, limits) == (mine[0] | gpus, mine[1] | gpus)


def test_the_cores_of_a_run_on_the_cpu_are_free_since_its_slots_are_the_chart_s():
    tree = {**OPD, "device": "cpu", "trainer": {"gpus_per_node": 4}}
    spec = rayjob("opd", tree, {"cluster": {"worker": {"requests": {"cpu": "500m"}}}}, experiment="")
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["rayStartParams"]["num-cpus"] == str(4 * 3 + 1 + 1)
