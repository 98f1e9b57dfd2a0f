"""Scenarios without a death and without progress: the launcher ends the attempt, with the stacks, for the next one."""

import signal
import time

import psutil
from tests.chaos.attempt import Attempt, require
from tests.chaos.context import Case, Context, last_lines
from tests.chaos.kills import EQUAL
from tests.chaos.scenario import scenario

from opd.runs.stacks import FILE as STACKS_FILE
from opd.runs.stream import read_streamed

# Far above what a phase takes here on a busy machine; only for the start that stalls, the next one has the default.
FLOOR_S = 90.0
_FLOOR = f"trainer.stall_floor_s={FLOOR_S:.0f}"
PROMISED = f"exit 1 once it has been silent for {FLOOR_S:.0f} s, the stacks of all its processes on the disk and later in the store; {EQUAL}"
_SERVER = "RolloutServer"
# A look every 5 s, then up to 60 s for what is left to close; the rest is for a busy machine.
GCS_BOUND_S = 180.0


@scenario(done="SIGSTOP of the driver before the generation of step 4", promised=PROMISED)
def stopped_driver(context: Context) -> str:
    case, attempt, _ = _frozen(context, _FLOOR)
    return _ended_and_continued(context, case, attempt)


@scenario(done="SIGSTOP of the rollout server before the generation of step 4", promised=PROMISED)
def silent_server(context: Context) -> str:
    case, attempt, driver = _frozen(context, _FLOOR)
    servers = [process for process in driver.children(recursive=True) if _SERVER in " ".join(process.cmdline())]
    require(len(servers) == 1, f"{len(servers)} processes are called {_SERVER}")
    servers[0].send_signal(signal.SIGSTOP)
    driver.send_signal(signal.SIGCONT)
    return _ended_and_continued(context, case, attempt, _SERVER)


@scenario(
    done="SIGKILL of the embedded Ray's gcs_server before the generation of step 4",
    promised=f"exit 1 within {GCS_BOUND_S:.0f} s and one line that names it; {EQUAL}",
)
def dead_gcs(context: Context) -> str:
    case, attempt, driver = _frozen(context)
    stores = [process for process in driver.children() if process.name() == "gcs_server"]
    require(len(stores) == 1, f"{len(stores)} processes are called gcs_server")
    stores[0].kill()
    started_s = time.monotonic()
    driver.send_signal(signal.SIGCONT)
    code = attempt.wait(GCS_BOUND_S)
    seconds = time.monotonic() - started_s
    require(code == 1, f"exit {code}: {last_lines(attempt)}")
    wanted = f"opd.launch: the run has lost Ray's gcs_server (process {stores[0].pid}), ended by SIGKILL"
    said = [line for line in attempt.output.splitlines() if line.startswith(wanted)]
    require(len(said) == 1, f"{len(said)} lines name the dead gcs_server: {last_lines(attempt)}")
    newest = case.finish_from_newest(attempt)
    context.must_equal_reference(case)
    return f"named and ended after {seconds:.0f} s, resumed from {newest}; equal"


def _frozen(context: Context, *sets: str) -> tuple[Case, Attempt, psutil.Process]:
    """Return a run with its driver, which has stopped itself before the generation of step 4."""
    case = context.case("run")
    attempt = case.start(*sets, freeze_at="generation:4")
    attempt.must_freeze_at("generation", 4)
    driver = attempt.driver()
    assert driver is not None
    return case, attempt, driver


def _ended_and_continued(context: Context, case: Case, attempt: Attempt, *in_stacks: str) -> str:
    code = attempt.wait()
    require(code == 1, f"exit {code}: {last_lines(attempt)}")
    said = [line for line in attempt.output.splitlines() if line.startswith("opd.launch: no progress for ")]
    require(len(said) == 1, f"no line says for how long there was no progress: {last_lines(attempt)}")
    path = f"attempts/{attempt.number:04d}/{STACKS_FILE}"
    stacks = case.places.local.get(path)
    for words in (*in_stacks, "opd.launch"):
        require(words.encode() in stacks, f"{path} does not hold {words!r}")
    newest = case.finish_from_newest(attempt)
    require(read_streamed(case.places.store, path) == stacks, "the stacks are not in the store")
    context.must_equal_reference(case)
    silent = said[0].removeprefix("opd.launch: ").partition(":")[0]
    return f"“{silent}”, {stacks.count(b'=====')} stacks, resumed from {newest}; equal"
