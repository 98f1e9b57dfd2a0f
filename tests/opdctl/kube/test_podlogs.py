"""Lines of a pod's log: each once over any reconnect."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from opdctl.kube.client import KubeApi
from opdctl.logs.pods import LogPod, PodLog, find_log_pods


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
    pod = LogPod(name="p", container="c", has_started=True, is_over=False)
    seen, given_out = PodLog(KubeApi(None, namespace="opd", context=None), pod), []
    for end in [*sorted(min(item, len(log)) for item in breaks), len(log)]:
        since = seen.reconnect() if given_out else ""
        for when, line in log[:end]:
            if not since or stamp(when) >= since.replace("Z", ".000000000Z"):
                text = seen.take(line.encode())
                if text is not None:
                    given_out.append(text)
    assert given_out == [line.partition(" ")[2] for _, line in log]


def test_the_log_is_the_submitter_s_or_that_of_the_head_s_log_container(pod: Callable) -> None:
    running = {"containerStatuses": [{"name": "submitter", "state": {"running": {}}}]}
    later = pod("submitter", name="s1")
    later["metadata"]["creationTimestamp"] = "2026-11-21T10:30:00Z"

    class Pods(KubeApi):
        def list(self, path: str, *, selector: str = "", **query: str | int) -> list[dict]:
            role = selector.rpartition("=")[2]
            trees = [later, pod("submitter", name="s0", phase="Failed", **running), pod("head", name="h")]
            return [tree for tree in trees if tree["metadata"]["labels"]["app.kubernetes.io/component"] == role]

    api = Pods(None, namespace="opd", context=None)
    found = find_log_pods(api, "r", "K8sJobMode")
    assert [(item.name, item.has_started, item.is_over) for item in found] == [("s0", True, True), ("s1", False, False)]
    [head] = find_log_pods(api, "r", "HTTPMode")
    assert (head.name, head.container) == ("h", "log")
