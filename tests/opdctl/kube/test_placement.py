"""Doctor's placement: which nodes take a run's pods, as the scheduler would say, and why the others do not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from opdctl.doctor.check_placement import check_placement
from opdctl.doctor.nodes import obstacles, read_nodes
from opdctl.doctor.placement import Group, Mount, describe, place
from opdctl.doctor.selectors import matches, requests, selects, tolerates

GPU = "nvidia.com/gpu"


def node(
    name: str,
    *,
    cpu: str = "64",
    memory: str = "256Gi",
    gpus: int = 0,
    labels: dict | None = None,
    taints: tuple = (),
    **spec: Any,
) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {"allocatable": allocatable},
    }


def pod_spec(*, cpu: str = "1", memory: str = "1Gi", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {GPU: gpus} if gpus else {}}
    return {"containers": [{"name": "c", "resources": resources}], **spec}


def group(role: str, count: int = 1, **spec: Any) -> Group:
    return Group(
        role=role,
        count=count,
        pod={"metadata": {"namespace": "opd", "labels": {"role": role}}, "spec": pod_spec(**spec)},
    )


def running(on: str, *, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "x", "labels": {"role": "worker"}},
        "spec": {**pod_spec(**spec), "nodeName": on},
        "status": {"phase": phase},
    }


def on(groups: list[Group], nodes: list[dict], pods: tuple = ()) -> dict[str, list[str]]:
    return {found.group.role: sorted(found.on) for found in place(groups, read_nodes(nodes, pods))}


TAINT = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}, True),
        ({"key": "sku", "value": "gpu"}, True),
        ({"key": "sku", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "sku", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "sku"}, False),
        ({"key": "gpu", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_is_for_a_taint_by_key_value_and_effect(toleration: dict, is_tolerated: bool) -> None:
    assert tolerates([toleration], TAINT) == is_tolerated


@pytest.mark.parametrize(
    ("operator", "values", "is_met"),
    [
        ("In", ["a", "7"], True),
        ("NotIn", ["7"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["6"], True),
        ("Lt", ["6"], False),
    ],
)
def test_expressions_are_met_as_kubernetes_says(operator: str, values: list, is_met: bool) -> None:
    assert matches({"key": "k", "operator": operator, "values": values}, {"k": "7"}) == is_met


def test_an_empty_selector_selects_everything_and_none_nothing() -> None:
    assert selects({}, {"a": "b"})
    assert not selects(None, {"a": "b"})


def test_a_pod_s_request_is_its_containers_with_side_cars_or_a_larger_init_container() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("2"), container("500m")],
        "initContainers": [container("1", restartPolicy="Always"), container("3")],
    }
    assert requests(spec)["cpu"] == 4  # the side car runs beside the second init container
    assert requests({"containers": [container("4")], "overhead": {"cpu": "250m"}})["cpu"] == Decimal("4.25")
    assert requests({"containers": [{"resources": {"limits": {GPU: 8}}}]})[GPU] == 8


@pytest.mark.parametrize(
    ("machine", "spec", "kinds"),
    [
        (node("n"), {}, []),
        (node("n", unschedulable=True), {}, ["state"]),
        (node("n", taints=(TAINT,)), {}, ["taint"]),
        (node("n", taints=({**TAINT, "effect": "PreferNoSchedule"},)), {}, []),
        (node("n", labels={"pool": "b"}), {"nodeSelector": {"pool": "a"}}, ["label"]),
        (node("n", cpu="7910m"), {"cpu": "8"}, ["size"]),
        (node("n", gpus=8), {"gpus": 8}, []),
        (node("n"), {"gpus": 8}, ["size"]),
        (node("n", labels={"arch": "arm64"}, taints=(TAINT,)), {"nodeSelector": {"arch": "amd64"}, "memory": "1Ti"}, ["taint", "label", "size"]),
    ],
)  # fmt: skip
def test_every_reason_against_a_node_is_named(machine: dict, spec: dict, kinds: list) -> None:
    [found] = read_nodes([machine], [])
    assert [item.kind for item in obstacles(pod_spec(**spec), found)] == kinds


def test_node_affinity_is_any_of_its_terms_and_all_of_a_term_s_expressions() -> None:
    def affinity(*terms: dict) -> dict[str, Any]:
        return {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
            }
        }

    [found] = read_nodes([node("n", labels={"a": "1", "b": "2"})], [])
    both = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}, {"key": "b", "operator": "Exists"}]}
    other = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}
    assert not obstacles(pod_spec(**affinity(other, both)), found)
    assert obstacles(pod_spec(**affinity(other)), found)
    assert obstacles(pod_spec(**affinity({})), found), "an empty term chooses nothing"


def test_what_runs_on_a_node_is_taken_and_what_has_ended_is_not() -> None:
    nodes = [node("n", gpus=8)]
    assert on([group("worker", gpus=8)], nodes, (running("n", gpus=8, phase="Succeeded"),)) == {"worker": ["n"]}
    assert on([group("worker", gpus=8)], nodes, (running("n", gpus=1),)) == {"worker": []}


def test_equal_workers_share_a_node_where_it_is_large_enough() -> None:
    assert on([group("worker", 2, gpus=8)], [node("n", gpus=16)]) == {"worker": ["n", "n"]}


def test_the_head_takes_no_worker_s_place() -> None:
    nodes = [node("a", cpu="16", gpus=8), node("b", cpu="4")]
    assert on([group("head", cpu="2"), group("worker", cpu="15", gpus=8)], nodes) == {"head": ["b"], "worker": ["a"]}


SPREAD = {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                                         "labelSelector": {"matchLabels": {"role": "worker"}}}]}  # fmt: skip
APART = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "worker"}}}]}}}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "count", "placed"), [(SPREAD, 2, ["a", "b"]), (SPREAD, 3, ["a", "a", "b"]), (APART, 3, ["a", "b"])]
)
def test_rules_between_the_workers_hold(rule: dict, count: int, placed: list) -> None:
    assert on([group("worker", count, gpus=4, **rule)], [node("a", gpus=16), node("b", gpus=16)]) == {"worker": placed}


def beside(kind: str, **labels: str) -> dict[str, Any]:
    rule = {"topologyKey": "zone", "labelSelector": {"matchLabels": labels}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}}


ZONES = [node("a", gpus=16, labels={"zone": "1"}), node("b", gpus=16, labels={"zone": "2"}), node("c", gpus=16)]


@pytest.mark.parametrize(
    ("rule", "placed"),
    [
        (beside("podAffinity", role="worker"), ["a", "a"]),  # the first goes anywhere that has a zone, the second to it
        (beside("podAffinity", app="cache"), ["b", "b"]),
        (beside("podAffinity", app="gone"), []),
        (beside("podAntiAffinity", app="cache"), ["a", "c"]),
    ],
)
def test_required_affinity_to_pods_that_run_holds(rule: dict, placed: list) -> None:
    cache = {**running("b"), "metadata": {"namespace": "opd", "labels": {"app": "cache"}}}
    assert on([group("worker", 2, gpus=8, **rule)], ZONES, (cache,)) == {"worker": placed}


def test_a_pod_that_runs_keeps_others_away_by_its_own_anti_affinity() -> None:
    hermit = running("a", **beside("podAntiAffinity", role="worker"))
    hermit["metadata"] = {"namespace": "opd", "labels": {}}
    assert on([group("worker", 2, gpus=8)], ZONES, (hermit,)) == {"worker": ["b", "c"]}


def test_a_port_of_the_host_is_one_pod_s() -> None:
    taken = running("a")
    taken["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 8080}]
    worker = group("worker", 3, gpus=4, hostNetwork=True)
    worker.spec["containers"][0]["ports"] = [{"containerPort": 8080}]
    [found] = place([worker], read_nodes(ZONES, [taken]))
    assert found.on == ("b", "c")
    assert [(item.kind, item.subject) for item in found.refusals["a"]] == [("port", 8080)]


def test_a_claim_s_volume_chooses_the_nodes() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2"]}]}
    worker = replace(group("worker", gpus=8), mounts=(Mount(claim="models", by="the volume", terms=(term,)),))
    [found] = place(
        [
            worker,
        ],
        read_nodes(ZONES, []),
    )
    assert found.on == ("b",)
    [found] = place([worker], read_nodes(ZONES[:1], []))
    assert [item.text for item in found.refusals["a"]] == ["the volume of claim models is for zone 2"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"schedulerName": "volcano"}, "the rules of scheduler volcano"),
        ({"resourceClaims": [{"name": "gpus"}]}, "resourceClaims"),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "namespaces": ["others"], "labelSelector": {}}]}}}, "namespaces"),
    ],
)  # fmt: skip
def test_what_is_not_judged_is_never_ok(spec: dict, words: str) -> None:
    nodes = read_nodes([node("n", gpus=8)], [])
    [found] = place([group("worker", gpus=8, **spec)], nodes)
    check = check_placement(found, nodes, None)
    assert check.state == "not checked"
    assert words in check.message


def test_a_spread_constraint_keeps_a_worker_off_the_only_node_with_room() -> None:
    nodes = [node("a", gpus=16), node("b", gpus=8)]
    [found] = place([group("worker", 2, gpus=8, **SPREAD)], read_nodes(nodes, [running("b", gpus=8)]))
    assert found.on == ("a",)
    assert [item.kind for item in found.refusals["a"]] == ["rule"]


def test_the_line_speaks_of_the_nodes_that_come_nearest() -> None:
    nodes = read_nodes([node("g1", gpus=8, taints=(TAINT,)), node("g2", gpus=8, taints=(TAINT,)), node("c")], [])
    [found] = place([group("worker", 2, cpu="27", gpus=8)], nodes)
    text = describe(found, nodes)
    assert text.startswith(
        "worker: 0 of 2 find a node (each wants cpu 27, memory 1Gi, nvidia.com/gpu 8): g1, g2: its taint sku=gpu:NoSchedule"
    )
    assert text.endswith("1 other node has not nvidia.com/gpu or the labels that it wants")


@pytest.mark.parametrize(
    ("nodes", "could_grow"),
    [
        ([], True),
        ([node("n", gpus=8, labels={"t": "other"})], True),
        ([node("n", gpus=8, labels={"t": "h"}, unschedulable=True)], True),
        ([node("n", gpus=8, labels={"t": "h"}, taints=(TAINT,))], False),
        ([node("n", gpus=4, labels={"t": "h"})], False),
    ],
)
def test_another_node_like_those_that_are_chosen_helps_only_where_one_would_take_the_pod(
    nodes: list, could_grow: bool
) -> None:
    [found] = place([group("worker", gpus=8, nodeSelector={"t": "h"})], read_nodes(nodes, []))
    assert found.could_grow == could_grow
