"""Lines of a pod's log: each once over any reconnect, and the store's copy taken up where the pods left off."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from opdctl.logs.pods import OVERLAP_S, StampedLines, log_pods


def stamp(second: int, nanos: int = 0) -> str:
    return f"2026-11-21T10:{second // 60:02d}:{second % 60:02d}.{nanos:09d}Z"


@given(
    gaps=st.lists(st.sampled_from([0, 1, 2, 7]), min_size=1, max_size=40),
    words=st.data(),
    breaks=st.lists(st.integers(0, 40), max_size=4),
)
def test_each_line_comes_once_over_any_reconnects(gaps: list[int], words: st.DataObject, breaks: list[int]) -> None:
    """Lines of one stamp, equal lines, and stamps that cross by less than a second, as stdout and stderr do."""
    second, log = 0, []
    for gap in gaps:
        second += gap
        cross = words.draw(st.integers(0, 1)) if gap == 0 else 0
        log.append((max(second - cross, 0), f"{stamp(max(second - cross, 0))} {words.draw(st.sampled_from('ab'))}"))
    seen, given_out = StampedLines(), []
    for end in [*sorted(min(item, len(log)) for item in breaks), len(log)]:
        since = seen.reconnect()
        for when, line in log[:end]:
            if not since or stamp(when) >= since.replace("Z", ".000000000Z"):
                text = seen.take(line)
                if text is not None:
                    given_out.append(text)
    assert given_out == [line.partition(" ")[2] for _, line in log]


def test_a_log_is_read_again_from_whole_seconds_before_its_newest_line() -> None:
    lines = StampedLines()
    assert lines.reconnect() == ""
    lines.take(f"{stamp(30, 999_999_999)} x")
    assert lines.reconnect() == f"2026-11-21T10:00:{30 - OVERLAP_S:02d}Z"


def test_the_log_lies_in_the_submitter_or_in_the_heads_log_container(pod: Callable) -> None:
    running = {"containerStatuses": [{"name": "submitter", "state": {"running": {}}}]}
    later = pod("submitter", name="s1")
    later["metadata"]["creationTimestamp"] = "2026-11-21T10:30:00Z"
    pods = [later, pod("submitter", name="s0", phase="Failed", **running), pod("head", name="h")]
    found = log_pods(pods, "K8sJobMode")
    assert [(item.name, item.has_started, item.is_over) for item in found] == [("s0", True, True), ("s1", False, False)]
    [head] = log_pods(pods, "HTTPMode")
    assert (head.name, head.container) == ("h", "log")


def test_a_container_that_waits_for_its_next_start_has_the_log_of_its_last(pod: Callable) -> None:
    ended = {"terminated": {"exitCode": 1}}
    waiting = {"name": "submitter", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    new = {"name": "submitter", "state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}}
    pods = [
        pod("submitter", name=name, containerStatuses=[status]) for name, status in (("again", waiting), ("new", new))
    ]
    assert [(item.name, item.has_started, item.is_over) for item in log_pods(pods, "K8sJobMode")] == [
        ("again", True, False), ("new", False, False),
    ]  # fmt: skip
