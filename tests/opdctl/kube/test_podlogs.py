"""Lines of a pod's log: each once over any reconnect, and the store's copy taken up where the pods left off."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from opdctl.logs.pods import StampedLines, log_pods


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


def test_the_log_lies_in_the_submitter_or_in_the_heads_log_container(pod: Callable) -> None:
    running = {"containerStatuses": [{"name": "submitter", "state": {"running": {}}}]}
    later = pod("submitter", name="s1")
    later["metadata"]["creationTimestamp"] = "2026-11-21T10:30:00Z"
    pods = [later, pod("submitter", name="s0", phase="Failed", **running), pod("head", name="h")]
    found = log_pods(pods, "K8sJobMode")
    assert [(item.name, item.has_started, item.is_over) for item in found] == [("s0", True, True), ("s1", False, False)]
    [head] = log_pods(pods, "HTTPMode")
    assert (head.name, head.container) == ("h", "log")
