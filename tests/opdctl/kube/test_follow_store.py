"""`logs -f` reads what a pod no longer gives from the store, before the lines of the next pod."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.opdctl.kube.followed import (
    FIRST,
    SECOND,
    THIRD,
    Cluster,
    Shaky,
    end,
    following_of,
    keep,
    succeed,
    until,
    wait_for,
)

from opdctl.commands.logs import logs
from opdctl.kube.client import KubeApi
from opdctl.runs import locate


def test_a_run_whose_pods_are_gone_is_read_from_the_store(cluster: tuple[Cluster, KubeApi], tmp_path: Path) -> None:
    state, api = cluster
    state.job = None
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: ["one", "two"]})
    wait_for(following)
    assert (printed, errors) == (["one", "two"], [])


def test_the_lines_of_a_pod_that_is_given_up_come_from_the_store_before_those_of_its_successor(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts={1: FIRST, 2: SECOND})
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])
    assert "pod s1 is given up" in capsys.readouterr().err


def test_the_lines_of_a_pod_that_was_silent_from_the_beginning_come_from_the_store_before_its_successor_claims(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1))
    state.begin(submitter("s2", 2))
    state.silent.add("s1")
    state.add("s2", *SECOND)
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts={1: FIRST})
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])


@pytest.mark.slow
def test_the_lines_of_a_pod_that_goes_while_an_older_one_is_waited_for_come_from_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.silent.add("s1")
    for number, lines in ((1, FIRST), (2, SECOND)):
        state.begin(submitter(f"s{number}", number), *lines)
    following, printed, errors = following_of(state, api, tmp_path, silent_s=8, attempts={1: FIRST, 2: SECOND})
    until(lambda: state.num_refused > 0)
    state.begin(submitter("s3", 3), *THIRD)
    del state.pods["s2"]
    until(lambda: THIRD[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, *SECOND, "===== pod s3 =====", *THIRD], [])


def test_an_equal_line_of_a_later_pods_attempt_is_not_taken_for_the_last_that_was_printed(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), "start")
    attempts = {1: ["start", *FIRST], 2: ["start", *SECOND], 3: THIRD}
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts=attempts)
    until(lambda: "start" in printed)
    state.silent |= {"s1", "s2"}
    state.begin(submitter("s2", 2))
    state.begin(submitter("s3", 3), *THIRD)
    until(lambda: THIRD[-1] in printed)
    end(state, following)
    shown = [line for line in printed if not line.startswith("=")]
    assert (shown, errors) == (["start", *FIRST, "start", *SECOND, *THIRD], [])


def test_a_store_that_is_away_is_waited_for_with_the_reason_before_the_next_pods_lines(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    store = Shaky(tmp_path / "r")
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST}, store=store)
    until(lambda: FIRST[1] in printed)
    store.is_away = True
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s2": submitter("s2", 2)}
    until(lambda: any("the store is away" in line for line in said))
    assert printed == FIRST[:2]
    store.is_away = False
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])
    assert said == [
        "the store is away, which has lines that no pod shows, following goes on when it is back, or after 60 s: no route to host",
        "the store is back",
    ]


def test_a_store_that_stays_away_at_the_end_is_given_up_as_a_pod_is(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    store = Shaky(tmp_path / "r")
    store.is_away = True
    state.begin(submitter("s1", 1, phase="Succeeded"), *FIRST)
    succeed(state)
    following, printed, errors = following_of(state, api, tmp_path, silent_s=1, attempts={1: FIRST}, store=store)
    wait_for(following)
    assert (printed, errors) == (FIRST, [])
    assert said == [
        "the store is away, following goes on when it is back, or after 1 s: no route to host",
        "the store is away for 1 s: lines that no pod showed may be missing: no route to host",
    ]


def test_a_store_that_stays_away_keeps_the_next_pods_lines_for_a_while_only_and_is_asked_again_later(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    store = Shaky(tmp_path / "r")
    state.begin(submitter("s1", 1), *FIRST[:2])
    attempts = {1: FIRST, 2: [*SECOND, *THIRD]}
    following, printed, errors = following_of(state, api, tmp_path, silent_s=1, attempts=attempts, store=store)
    until(lambda: FIRST[1] in printed)
    store.is_away = True
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s2": submitter("s2", 2)}
    until(lambda: SECOND[-1] in printed)
    assert printed == [*FIRST[:2], "===== pod s2 =====", *SECOND]
    store.is_away = False
    end(state, following)
    assert (printed, errors) == ([*FIRST[:2], "===== pod s2 =====", *SECOND, *THIRD], [])
    assert said == [
        "the store is away, which has lines that no pod shows, following goes on when it is back, or after 1 s: no route to host",
        "the store is away for 1 s: lines that no pod showed may be missing: no route to host",
        "the store is back",
    ]


def test_what_a_driver_prints_after_its_submitter_was_read_to_its_end_comes_before_the_lines_of_the_next_pod(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST[:3]})
    until(lambda: FIRST[2] in printed)
    keep(tmp_path, 1, FIRST)
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors, said) == ([*FIRST, "===== pod s2 =====", *SECOND], [], [])


def test_what_a_driver_prints_after_its_pod_went_comes_before_the_lines_of_the_next_pod(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:1])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST[:2]})
    until(lambda: FIRST[0] in printed)
    state.pods = {}
    until(lambda: FIRST[1] in printed)
    keep(tmp_path, 1, FIRST)
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s2": submitter("s2", 2)}
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])


def test_the_lines_of_an_ended_pod_that_goes_between_the_look_at_it_and_its_reading_come_from_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s1": submitter("s1", 1, phase="Failed"), "s2": submitter("s2", 2)}
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST, 2: SECOND})
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])


def test_the_lines_of_a_pod_that_came_and_went_while_the_cluster_was_away_come_from_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST)
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST})
    until(lambda: FIRST[-1] in printed)
    state.is_away = True
    until(lambda: any("the cluster is away" in line for line in said))
    keep(tmp_path, 2, SECOND)
    keep(tmp_path, 3, THIRD)
    state.begin(submitter("s3", 3), *THIRD)
    state.is_away = False
    until(lambda: THIRD[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, *SECOND, "===== pod s3 =====", *THIRD], [])


def test_a_stored_line_ends_where_that_of_a_pod_does_whatever_a_model_wrote(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    lines = ["step 1", "answer: a\u2028b", "step 2"]
    state.begin(submitter("s1", 1), *lines[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: lines})
    until(lambda: len(printed) == 2)
    state.pods = {}
    end(state, following)
    assert (printed, errors) == (["step 1", r"answer: a\u2028b", "step 2"], [])


def test_that_a_pods_last_lines_are_lost_is_said_where_there_is_no_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST)
    following, printed, _ = following_of(state, api, tmp_path, attempts={})
    until(lambda: FIRST[-1] in printed)
    state.pods = {}
    end(state, following)
    assert capsys.readouterr().err.count("a pod went before it was read to its end, and there is no store") == 1


def test_a_pod_that_was_read_whole_is_not_called_lost_after_the_cluster_was_away(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={})
    until(lambda: FIRST[1] in printed)
    state.is_away = True
    until(lambda: any("the cluster is away" in line for line in said))
    state.is_away = False
    state.add("s1", *FIRST[2:])
    until(lambda: FIRST[-1] in printed)
    state.pods["s1"] = submitter("s1", 1, phase="Failed")
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])
    assert [line for line in said if "the cluster is" not in line] == []


def test_a_store_in_which_nothing_lay_yet_when_following_began_has_the_lines_of_pods_that_went(
    cluster: tuple[Cluster, KubeApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    succeed(state)
    monkeypatch.setattr(locate, "connect", lambda **_: api)
    monkeypatch.setattr(locate, "is_configured", lambda: True)
    keep(tmp_path, 1, FIRST)  # there is no run.json: for the tool the run has no place yet
    logs("r", store=str(tmp_path), follow=True)
    assert capsys.readouterr().out.splitlines() == FIRST
