"""`logs -f` over a server that breaks every stream: each line once, in order, to the run's end."""

from __future__ import annotations

from collections.abc import Callable

from tests.opdctl.kube.followed import (
    FIRST,
    Cluster,
    end,
    following_of,
    until,
)

from opdctl.kube.client import KubeApi
from opdctl.logs.pods import PodLog, find_log_pods


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
    assert "pod s1 went before it was read to its end: `opdctl logs r` reads the rest from the store" in said
    assert said[-1] == "the cluster answers again"


def test_a_pod_that_stays_silent_at_the_end_is_given_up_and_the_store_is_named(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, silent_s=0.1)
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    end(state, following)
    assert (printed, errors) == (FIRST[:2], [])
    assert said[-1] == "pod s1 is given up after 0.1 s: `opdctl logs r` reads the rest from the store"


def test_a_tail_leaves_out_nothing_that_a_silent_container_prints_later(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1))
    log = PodLog(api, find_log_pods(api, "r", "K8sJobMode")[0], tail=2)
    assert list(log.lines(follow=True)) == []
    state.add("s1", *FIRST)
    assert list(log.lines(follow=False)) == FIRST
