"""`logs -f` over a server that breaks every stream: each line once, in order, to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.opdctl.kube.followed import (
    FIRST,
    SECOND,
    Cluster,
    end,
    following_of,
    succeed,
    until,
    wait_for,
)

from opdctl.commands.logs import of_pod
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.run import ClusterRun
from opdctl.kube.waiting import pod_lines
from opdctl.logs.pods import PodFollower, find_pod
from opdctl.runs.places import Found


def test_every_line_comes_once_over_broken_streams_a_lost_pod_and_an_api_server_away(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, said: list[str]
) -> None:
    state, api = cluster
    first = [f"step {number}/40" for number in range(20)]
    second = [f"step {number}/40 again" for number in range(15, 40)]
    state.begin(submitter("s1", 1), "opd.pods.submit: hello", *first)
    following, printed, errors = following_of(state, api)
    until(lambda: first[-1] in printed)
    del state.pods["s1"]
    until(lambda: any("pod s1" in line for line in said))
    state.begin(submitter("s2", 2), "opd.pods.submit: hello", *second[:10])
    until(lambda: second[9] in printed)
    state.is_away = True
    until(lambda: any("the cluster is unreachable" in line for line in said))
    state.add("s2", *second[10:])
    state.is_away = False
    until(lambda: second[-1] in printed)
    state.add("s2", "opd.pods.submit: job r: SUCCEEDED")
    state.pods["s2"] = submitter("s2", 2, phase="Succeeded")
    end(state, following)
    assert (printed, errors) == ([
        "opd.pods.submit: hello", *first, "===== pod s2 =====", "opd.pods.submit: hello", *second,
        "opd.pods.submit: job r: SUCCEEDED",
    ], [])  # fmt: skip
    assert state.num_streams > 3, "streams were broken"
    assert "pod s1 went before it was read to its end: `opdctl logs r --from store` has the rest" in said
    assert said[-1] == "the cluster answers again"


def test_a_kubelet_that_is_away_at_the_runs_end_is_waited_for(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api)
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    until(lambda: state.num_refused > 2)
    succeed(state)
    state.add("s1", *FIRST[2:], "opd.pods.submit: job r: SUCCEEDED")
    num_refused = state.num_refused
    until(lambda: state.num_refused > num_refused + 2)
    state.silent.clear()
    wait_for(following)
    assert (printed, errors) == ([*FIRST, "opd.pods.submit: job r: SUCCEEDED"], [])
    assert [line.partition(":")[0] for line in said] == ["pod s1 cannot be read, waiting for it"]


def test_a_pod_that_stays_silent_at_the_end_is_an_error_instead_of_an_end_that_looks_whole(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, silent_s=0.1)
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    end(state, following)
    assert printed == FIRST[:2]
    [error] = errors
    assert str(error).startswith("pod s1 cannot be read")
    assert "--from store" in error.fix


def test_a_silent_pod_with_a_successor_is_given_up_and_said(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, silent_s=0.1)
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST[:2], "===== pod s2 =====", *SECOND], [])
    assert said[-1] == "pod s1 is given up after 0.1 s: `opdctl logs r --from store` has the rest"


def test_one_pod_is_followed_to_its_own_end_by_its_name_or_its_role(
    cluster: tuple[Cluster, KubeApi], pod: Callable
) -> None:
    state, api = cluster
    for name in ("w1", "w2"):
        tree = pod("worker", name=name, containerStatuses=[{"name": "ray", "state": {"running": {}}}])
        state.pods[name], state.logs[name] = tree, []
    state.add("w1", *(lines := [f"line {number}" for number in range(6)]))
    with pytest.raises(ToolError, match="2 worker pods") as refused:
        find_pod(api, "r", "worker", None)
    assert "w1, w2" in refused.value.fix
    with pytest.raises(ToolError, match="no container 'log'"):
        find_pod(api, "r", "w1", "log")
    state.pods["w1"]["status"]["phase"] = "Succeeded"
    printed: list[str] = []
    follower = PodFollower(
        api, "r", lambda: find_pod(api, "r", "w1", None), is_one_pod=True, poll_s=0.01, out=printed.append
    )
    follower.follow()
    assert printed == lines, "the run goes on, the pod does not"
    del state.pods["w2"]
    assert [found.name for found in find_pod(api, "r", "worker", "ray")] == ["w1"]


def no_such_pod(api: KubeApi, pods: list[dict[str, Any]]) -> ToolError:
    run = ClusterRun(job=None, pods=pod_lines(pods, []))
    found = Found(run_id="r", api=api, in_cluster=run, place=None)
    with pytest.raises(ToolError, match="run r has no pod 'wroker' now") as refused:
        of_pod(found, "wroker", None, follow=False, tail=None)
    return refused.value


def test_a_pod_that_is_not_there_is_answered_with_those_that_are_and_their_roles(
    cluster: tuple[Cluster, KubeApi], pod: Callable
) -> None:
    error = no_such_pod(cluster[1], [pod("head", name="h"), pod("worker", name="w1")])
    assert "h (head), w1 (worker)" in str(error)
    assert "name one of them with --pod" in error.fix
