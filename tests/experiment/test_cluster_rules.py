"""Rules of `cluster`: each broken one is an error that names key, value, rule and fix, and its mended value is not."""

import copy

import pytest
from tests.minimal import MINIMAL

from opd.experiment import SpecError, parse_tree
from opd.experiment.cluster import load_cluster
from opd.experiment.tree import set_path

EPHEMERAL = {"checkpoints": {"ephemeral": True}}
KUEUE = {"manager": "kueue", "name": "q"}


def broken(kind, cluster, keys):
    tree = copy.deepcopy(MINIMAL[kind])
    for path, value in keys.items():
        set_path(tree, path, value)
    with pytest.raises(SpecError) as caught:
        load_cluster(cluster, parse_tree(tree).spec)
    [problem] = caught.value.problems
    assert problem.fix
    return problem


# kind, the section, other keys of the file, path of the problem, words of the rule
# fmt: off
RULES = [
    ("convert", {"cleanUp": {"succeeded": {"selfSeconds": 119}}}, {}, "cluster.cleanUp.succeeded",
     "clusterSeconds <="),
    ("convert", {"deadlines": {"activeSeconds": 900}}, {}, "cluster.deadlines", "both or none"),
    ("opd", {"deadlines": {"activeSeconds": 900, "preRunningSeconds": 600}}, {}, "cluster.deadlines.activeSeconds",
     "deadlines.preRunningSeconds + stop.saveSeconds = 900"),
    ("opd", {"queue": KUEUE}, {}, "cluster.lifecycle", "Kueue suspends runs"),
    ("opd", {"networkPolicy": {"enabled": False, "acceptOpenNetwork": True}, "auth": {"token": False}}, {},
     "cluster.auth.token", "every pod of the cluster could"),
    ("convert", EPHEMERAL, {"store.url": "file:///x"}, "store.url", "only an object store"),
    ("convert", {"head": {"objectStoreGib": 2.5}}, {}, "cluster.head.objectStoreGib", "which has 2 GiB"),
    ("convert", {"head": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}, {}, "cluster.head.requests.cpu",
     "which is 1500m"),
    ("opd", {"worker": {"requests": {"cpu": 23}}}, {}, "cluster.worker.requests.cpu",
     "needs 24 (3 for each of 8 ranks)"),
    ("opd", {"worker": {"requests": {"cpu": 2}, "limits": {"cpu": "22500m"}}}, {}, "cluster.worker.limits.cpu",
     "needs 24"),
    ("convert", {"head": {"shmGib": 17, "limits": {"memory": "16Gi"}}}, {}, "cluster.head.shmGib", "which is 16Gi"),
    ("opd", {"checkpoints": {"accessMode": "ReadWriteOnce"}}, {"trainer.nnodes": 2}, "cluster.checkpoints.accessMode",
     "trainer.nnodes is 2"),
]
# fmt: on


@pytest.mark.parametrize(("kind", "cluster", "keys", "path", "words"), RULES)
def test_a_broken_rule_is_refused(kind, cluster, keys, path, words):
    problem = broken(kind, cluster, keys)
    assert (problem.path, words in problem.rule) == (path, True)


@pytest.mark.parametrize(
    ("cluster", "keys"),
    [
        ({"deadlines": {"activeSeconds": 901, "preRunningSeconds": 600}}, {}),
        ({"queue": KUEUE, "lifecycle": "suspendable"}, {}),
        ({"checkpoints": {"accessMode": "ReadWriteOnce", "claim": "c"}}, {"trainer.nnodes": 2}),
        ({"worker": {"requests": {"cpu": "23500m"}}}, {}),  # KubeRay rounds up
        ({"worker": {"requests": {"cpu": 1}}}, {"device": "cpu"}),  # the chart gives its slots
    ],
)
def test_a_section_at_the_edge_of_a_rule_is_accepted(cluster, keys):
    tree = copy.deepcopy(MINIMAL["opd"])
    for path, value in keys.items():
        set_path(tree, path, value)
    load_cluster(cluster, parse_tree(tree).spec)
