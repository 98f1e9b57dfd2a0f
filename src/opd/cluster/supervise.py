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
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from opd.errors import EXIT_INTERRUPTED, Stopped
from opd.experiment import AnyRunSpec
from opd.runs import stacks
from opd.runs.progress import PROGRESS

EXIT_FAILED = 1
DEFAULT_GRACE_S = 30.0
_KILL_WAIT_S = 5.0
_POLL_S = 0.1
_STOPS = (signal.SIGINT, signal.SIGTERM)
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
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
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
    signals: list[int] = []
    before = [signal.signal(number, lambda number, frame: signals.append(number)) for number in _STOPS]
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    status = _follow(child, signals, grace_s)
    num_left = end_descendants()
    for number, handler in zip(_STOPS, before, strict=True):
        signal.signal(number, handler)
    shutil.rmtree(os.environ.pop(stacks.FOLDER_VARIABLE), ignore_errors=True)
    if num_left and status != 0:  # after a good end these are Ray's actors, slow to exit on a busy machine
        _say(f"ended {num_left} process{'es' if num_left > 1 else ''} that the run had left")
    if signals and status != 0:  # 0: the run is done, and the signal came too late to stop it
        return EXIT_INTERRUPTED
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        _say(f"the run was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}")
        return EXIT_FAILED
    return os.waitstatus_to_exitcode(status)


def _follow(child: int, signals: Sequence[int], grace_s: float) -> int:
    """Return the child's wait status; forward the first of the signals, end a stalled run, and reap orphans on the way."""
    kill_at_s: float | None = None
    while (found := os.waitpid(-1, os.WNOHANG))[0] != child:
        if found[0]:
            continue
        if signals and kill_at_s is None:
            _say(f"{signal.Signals(signals[0]).name}: stopping the run (up to {grace_s:g} s; again: at once)")
            kill_at_s = time.monotonic() + grace_s
            os.kill(child, signal.SIGTERM)
        is_time_up = len(signals) > 1 or (kill_at_s is not None and time.monotonic() > kill_at_s)
        if is_time_up or _is_stalled():
            # A process that hangs does not unwind at SIGTERM; the next attempt resumes from the last seal.
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(_POLL_S)
    return found[1]


def _is_stalled() -> bool:
    """Return True if the child makes no progress (`opd.runs.progress`); say so, with the stacks of its processes."""
    standing = PROGRESS.read()
    if standing is None or not standing.is_stalled:
        return False
    silent = f"no progress for {standing.silent_s():.0f} s in {standing.phase} at step {standing.step}"
    path = Path(standing.folder or tempfile.gettempdir()) / stacks.FILE
    try:
        path.write_text(f"{silent}, {standing.limit_s:.0f} s were allowed; stacks:\n\n{stacks.dump()}")
        where = f"the stacks of its processes are in {path}"
    except Exception as error:  # noqa: BLE001 - the run has to end with and without its stacks
        where = f"its stacks cannot be had: {error!r}"
    _say(f"{silent}: ending this attempt, the next one resumes from the newest checkpoint; {where}")
    return True


def end_descendants() -> int:
    """End every process below this one by SIGTERM, after a few seconds by SIGKILL; return their number."""
    import psutil

    found: set[int] = set()
    kill_at_s = time.monotonic() + _KILL_WAIT_S
    while left := psutil.Process().children(recursive=True):
        is_late = time.monotonic() > kill_at_s
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE and (is_late or process.pid not in found):
                    process.send_signal(signal.SIGKILL if is_late else signal.SIGTERM)
                    found.add(process.pid)
        psutil.wait_procs(left, timeout=0.05)  # reaps the children of this process
        if time.monotonic() > kill_at_s + _KILL_WAIT_S:
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


@contextlib.contextmanager
def rendezvous_in_a_file(spec: AnyRunSpec) -> Iterator[None]:
    """Let the ranks of an embedded Ray on CPUs meet through a file: torch's TCPStore listens on every address.

    GPUs keep the TCPStore, with which alone NCCL's watchdogs are tested, and so does a run that names a port.
    """
    has_own = spec.trainer.master_port is not None or _INIT_METHOD in os.environ or os.environ.get("RAY_ADDRESS")
    if spec.device != "cpu" or has_own:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="opd-ranks-", ignore_cleanup_errors=True) as folder:
        os.environ[_INIT_METHOD] = f"file://{folder}/store"
        try:
            yield
        finally:
            del os.environ[_INIT_METHOD]
