"""`logs -f --tail`: the last lines of the beginning, and everything after them."""

from __future__ import annotations

from collections.abc import Callable

from tests.opdctl.kube.followed import (
    FIRST,
    SECOND,
    Cluster,
    end,
    following_of,
    until,
)

from opdctl.kube.client import KubeApi
from opdctl.logs.pods import PodLog, find_log_pods


def test_the_tail_is_that_of_the_pods_at_the_beginning_and_a_later_one_is_read_whole(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST)
    following, printed, errors = following_of(state, api, tail=2)
    until(lambda: FIRST[-1] in printed)
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST[2:], "===== pod s2 =====", *SECOND], [])


def test_a_tail_is_none_of_what_a_silent_container_prints_later(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1))
    log = PodLog(api, find_log_pods(api, "r", "K8sJobMode")[0], tail=2)
    assert list(log.lines(follow=True)) == []
    state.add("s1", *FIRST)
    assert list(log.lines(follow=False)) == FIRST
