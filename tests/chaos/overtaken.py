"""The scenario of two attempts at once: a frozen one whose lease has run out wakes up next to its successor."""

from tests.chaos.attempt import Attempt, require
from tests.chaos.context import Case, Context, last_lines
from tests.chaos.kills import EQUAL
from tests.chaos.scenario import scenario

from opd.runs.attempts import HEARTBEAT_FILE, LEASE_TTL_S, OWNER_FILE, attempt_prefix, read_owner
from opd.runs.manifest import complete_steps, step_folder


@scenario(
    done="SIGSTOP in the generation of step 2; a second attempt, SIGSTOP in its third save; both wake up beside a third",
    promised=f"a successor waits for the lease; who wakes up says that it was overtaken and exits 1; {EQUAL}",
)
def two_attempts(context: Context) -> str:
    with context.s3_store() as (proxy, url, environment):
        case = context.case("run", store_url=url, environment=environment)
        first = case.start(freeze_at="generation:2")
        _freeze(first, "generation", 2)
        second = case.start(freeze_at="upload:3")
        _freeze(second, "upload", 3)
        uploading = complete_steps([case.places.store])[-1] + 1
        third = case.start(freeze_at="generation:3")
        _freeze(third, "generation", 3)
        sealed = complete_steps([case.places.store])
        require(
            uploading in sealed,
            f"the third attempt sealed steps {sealed}, and the second froze in its save of step {uploading}",
        )
        waited_s = [_seconds_between(case, attempt) for attempt in (1, 2)]
        require(min(waited_s) >= LEASE_TTL_S - 1, f"taken over {waited_s} s after the last sign of life")
        num_before = len(proxy.requests)
        for attempt in (first, second, third):
            attempt.thaw()
        codes = [attempt.wait() for attempt in (first, second, third)]
        require(
            codes == [1, 1, 0], f"exit codes {codes}: {last_lines(first)}; {last_lines(second)}; {last_lines(third)}"
        )
        for attempt in (first, second, third):
            attempt.must_leave_nothing()
        for number, attempt in enumerate((first, second), start=1):
            said = [
                line for line in attempt.output.splitlines() if line.startswith(f"opd.launch: attempt {number} of ")
            ]
            require(said and "was overtaken by attempt 3" in said[-1], f"attempt {number}: {last_lines(attempt)}")
        written = [path for method, path in proxy.requests[num_before:] if method in ("PUT", "POST")]
        stale = [path for path in written if any(f"/{step_folder(step)}/" in path for step in sealed)]
        require(not stale, f"a sealed step was written over: {stale[:3]}")
        context.must_equal_reference(case)
        return (
            "attempts 1 and 2 woke up, said that attempt 3 has overtaken them, wrote over nothing and exited 1; equal"
        )


def _seconds_between(case: Case, attempt: int) -> float:
    """From an attempt's last sign of life to its successor's claim."""
    store = case.places.store
    signs = [store.info(f"{attempt_prefix(attempt)}/{name}") for name in (OWNER_FILE, HEARTBEAT_FILE)]
    successor = read_owner(store, attempt + 1)
    require(successor is not None, f"attempt {attempt + 1} has no owner")
    assert successor is not None
    return successor.started_at_s - max(sign.modified_s for sign in signs if sign is not None)


def _freeze(attempt: Attempt, phase: str, nth: int) -> None:
    """The driver has stopped itself at the mark; now all its processes stop, as when a node hangs."""
    attempt.must_freeze_at(phase, nth)
    attempt.freeze()
