"""`logs -f --tail`: the last lines of the beginning, and everything after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.opdctl.kube.followed import (
    FIRST,
    SECOND,
    Cluster,
    end,
    following_of,
    until,
)

from opdctl.kube.client import KubeApi
from opdctl.kube.errors import StreamBroken
from opdctl.logs.pods import PodLog, find_log_pods


def test_the_tail_is_that_of_every_pod_of_the_first_look_also_where_an_older_one_is_waited_for(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.silent.add("s1")
    for number, lines in ((1, FIRST), (2, SECOND)):
        state.begin(submitter(f"s{number}", number, phase="Failed"), *lines)
    following, printed, errors = following_of(state, api, tail=1)
    until(lambda: state.num_refused > 2)
    state.silent.clear()
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([FIRST[-1], "===== pod s2 =====", SECOND[-1]], [])


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


@pytest.mark.parametrize("num_bytes", [5, 31], ids=["in its stamp", "in its text"])
def test_a_tail_whose_stream_breaks_within_its_first_line_stays_a_tail(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST)
    log = PodLog(api, find_log_pods(api, "r", "K8sJobMode")[0], tail=2)

    def broken(*_: object, **__: object) -> Iterator[bytes]:
        yield state.logs["s1"][2].encode()[:num_bytes]
        raise StreamBroken("the stream broke off")

    with monkeypatch.context() as patched:
        patched.setattr(api, "stream", broken)
        with pytest.raises(StreamBroken):
            list(log.lines(follow=True))
    assert list(log.lines(follow=False)) == FIRST[2:]
