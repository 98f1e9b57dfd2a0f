"""A supervisor of a local run: it runs the experiment in a child process and ends everything that the child started.

The child is forked into its own session; the parent stays small, forwards signals and cleans up. On Linux the parent is
the "subreaper": processes whose parent has died (Ray's daemons and workers after a kill -9) become its children. The
processes of an embedded Ray listen on 127.0.0.1 only.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from opd.errors import EXIT_INTERRUPTED, Stopped
from opd.experiment import AnyRunSpec
from opd.runs import stacks
from opd.runs.progress import PROGRESS, Standing

EXIT_FAILED = 1
DEFAULT_GRACE_S = 30.0
_KILL_WAIT_S = 5.0
STALL_POLL_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_INIT_METHOD = "DIST_INIT_METHOD"


def supervised(run: Callable[[], int], *, grace_s: float = DEFAULT_GRACE_S) -> int:
    """Run `run` in a child process to its end and clean up after it; call it before threads are started (it forks).

    The first SIGINT or SIGTERM is forwarded as SIGTERM and starts the grace period; a second one, or the end of the grace
    period, kills.

    Returns:
        In the parent: `run`'s exit code, 130 after a signal before its end, 1 if another signal ended the child.
        In the child: `run`'s exit code, for `sys.exit`, so that exit handlers run.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.environ[stacks.FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="opd-stacks-")
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGHUP, _on_launcher_death)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
        if os.getppid() != parent:  # the parent died before the line above took effect
            return EXIT_INTERRUPTED
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        stacks.register()
        try:
            return run()
        except Stopped:
            return EXIT_INTERRUPTED
    supervisor = _Supervisor(child, grace_s)
    with supervisor.handling_signals():
        with stall_watch(child):
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            status = supervisor.wait()
        num_left = end_descendants()
    shutil.rmtree(os.environ.pop(stacks.FOLDER_VARIABLE), ignore_errors=True)
    if num_left and status != 0:  # after a good end these are Ray's actors, slow to exit on a busy machine
        _say(f"ended {num_left} process{'es' if num_left > 1 else ''} that the run had left")
    return supervisor.exit_code(status)


@contextmanager
def stall_watch(child: int) -> Iterator[None]:
    """Let a thread end the child while it makes no progress (`opd.runs.progress`), and write the stacks of its processes."""
    over = threading.Event()
    thread = threading.Thread(target=_end_stalled, args=(child, over), name="opd-stall-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _end_stalled(child: int, over: threading.Event) -> None:
    """Kill a stalled run: a process that hangs does not unwind at SIGTERM, and the next attempt resumes from the last seal."""
    while not over.wait(STALL_POLL_S):
        standing = PROGRESS.read()
        if standing is None or not standing.is_stalled:
            continue
        silent = f"no progress for {standing.silent_s():.0f} s in {standing.phase} at step {standing.step}"
        try:
            where = _dump(child, standing, silent)
        except Exception as error:  # noqa: BLE001 - the run has to end with and without its stacks
            where = f"its stacks cannot be had: {error!r}"
        if not over.is_set():
            _say(f"{silent}: ending this attempt, the next one resumes from the newest checkpoint; {where}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return


def _dump(child: int, standing: Standing, silent: str) -> str:
    """Write the stacks of the run's processes on this machine; return where they are."""
    import psutil

    pids = [child]
    with contextlib.suppress(psutil.NoSuchProcess):
        pids += [process.pid for process in psutil.Process(child).children(recursive=True)]
    pids += [pid for pid in stacks.registered() if pid not in pids]
    path = Path(standing.folder or tempfile.gettempdir()) / stacks.FILE
    allowed = f"{standing.limit_s:.0f} s were allowed"
    path.write_text(f"{silent}, {allowed}; the stacks of {len(pids)} processes:\n\n{stacks.dump(pids)}")
    return f"the stacks of its {len(pids)} processes are in {path}"


class _Supervisor:
    """The signals to one child, and its exit status."""

    def __init__(self, child: int, grace_s: float) -> None:
        self.child = child
        self.grace_s = grace_s
        self.interrupted = False
        self.status: int | None = None

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        handled = {signal.SIGINT: self._stop, signal.SIGTERM: self._stop, signal.SIGALRM: self._kill}
        before = {number: signal.signal(number, handler) for number, handler in handled.items()}
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self) -> int:
        """Return the wait status of the child, and reap orphans on the way."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.child:
                self.status = status
                return status

    def exit_code(self, status: int) -> int:
        if self.interrupted and status != 0:  # 0: the run is done, and the signal came too late to stop it
            return EXIT_INTERRUPTED
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            _say(f"the run was ended by {name}{hint}")
            return EXIT_FAILED
        return os.waitstatus_to_exitcode(status)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            self._kill(number, frame)
            return
        self.interrupted = True
        _say(f"{signal.Signals(number).name}: stopping the run (up to {self.grace_s:g} s; again: at once)")
        signal.setitimer(signal.ITIMER_REAL, self.grace_s)
        self._send(signal.SIGTERM)

    def _kill(self, number: int, frame: FrameType | None) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.status is None:  # afterwards the number may be another process's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)


def end_descendants() -> int:
    """End every process below this one by SIGTERM, after a few seconds by SIGKILL; return their number."""
    import psutil

    found: set[int] = set()
    deadline = time.monotonic() + _KILL_WAIT_S
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if time.monotonic() > deadline:
                    process.kill()
                elif process.pid not in found:
                    process.terminate()
                found.add(process.pid)
        psutil.wait_procs(left, timeout=0.05)  # reaps the children of this process
        if time.monotonic() > deadline + _KILL_WAIT_S:
            _say(f"could not end processes {sorted(process.pid for process in left)}")
            break
    return len(found)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped("asked to end by a signal")


def _on_launcher_death(number: int, frame: FrameType | None) -> None:
    """Ask the run to end as the launcher would have, once.

    Linux sends the signal for each ended thread of the launcher (prctl(2), PR_SET_PDEATHSIG), and a second SIGTERM would
    end the run within its save.
    """
    signal.signal(number, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Call prctl on Linux; elsewhere the walk still finds processes that are no orphans."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _say(text: str) -> None:
    """Write a line to stderr, also from a handler that interrupts a print."""
    with contextlib.suppress(OSError):
        os.write(2, f"opd.launch: {text}\n".encode())


def stay_on_loopback() -> None:
    """Set Ray, gloo and NCCL of a run that joins no cluster to 127.0.0.1, before the import of Ray.

    Ray runs what its clients send, and gloo and NCCL read what reaches them. In a cluster the chart's NetworkPolicy guards
    these ports. Ray takes a loopback address for its node only where it knows that there can be no cluster. It replaces
    `ray.init(_node_ip_address="127.0.0.1")` by the node's own address.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    for library in ("GLOO", "NCCL") if sys.platform == "linux" else ():
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")


@contextmanager
def rendezvous_in_a_file(spec: AnyRunSpec) -> Iterator[None]:
    """Let the ranks of an embedded Ray on CPUs meet through a file: torch's TCPStore listens on every address.

    GPUs keep the TCPStore, with which alone NCCL's watchdogs are tested, and so does a run that names a port.
    """
    joins = bool(os.environ.get("RAY_ADDRESS"))
    if joins or spec.device != "cpu" or spec.trainer.master_port is not None or _INIT_METHOD in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="opd-ranks-", ignore_cleanup_errors=True) as folder:
        os.environ[_INIT_METHOD] = f"file://{folder}/store"
        try:
            yield
        finally:
            del os.environ[_INIT_METHOD]
