"""Many processes in one: tasks that take turns under a simulated clock, and every turn, delay and fault drawn from a seed.

A task is a greenlet, so the real code runs in it unchanged and is left wherever it does something that the simulated world
sees: a call of the file system, a request, a lock, a wait.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

# What one call of the operating system takes, seconds.
CALL_S = 0.0002
EPOCH_S = 1_700_000_000.0


class Killed(BaseException):
    """Unwinds the tasks of a process that is gone; nothing that it does on the way is seen by the world."""


class Failure(BaseException):
    """A promise that the control code has broken, or a schedule that does not end."""


@dataclass(eq=False)
class Machine:
    """A host: its clock, its boot, and the processes that run on it."""

    name: str
    boot: int = 0
    offset_s: float = 0.0
    processes: dict[int, Process] = field(default_factory=dict)
    mounts: dict[str, Any] = field(default_factory=dict)

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"


@dataclass(eq=False)
class Process:
    """One process; dead, nothing of it is run any more, and paused, nothing until it is woken."""

    machine: Machine
    pid: int
    role: str
    attempt: int = 0
    tasks: list[Task] = field(default_factory=list)
    files: dict[int, Any] = field(default_factory=dict)
    next_file: int = 1000
    is_dead: bool = False
    is_paused: bool = False
    # When it, or a thread of it, last came out of a pause.
    woken_s: float = -1e9
    held: list[tuple[Task, int]] = field(default_factory=list)
    # When the run's last choice of a step began.
    chose_s: float = 0.0
    handler: Any = None
    has_sigterm: bool = False
    has_met_read_faults: bool = False
    is_driver: bool = False
    on_end: list[Callable[[], None]] = field(default_factory=list)
    error: BaseException | None = None


class Task:
    """One thread of a process."""

    __slots__ = ("call", "error", "greenlet", "is_done", "joiners", "name", "process", "ticket")

    def __init__(self, process: Process, name: str, call: Callable[[], Any], hub: greenlet):
        self.process, self.name, self.call = process, name, call
        self.is_done, self.ticket, self.joiners = False, 0, []
        self.error: BaseException | None = None
        self.greenlet = greenlet(self._run, hub)
        process.tasks.append(self)

    def _run(self) -> None:
        try:
            self.call()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the world looks at every end of a thread
            self.error = error
        self.is_done = True


class Scheduler:
    """The clock, what is due, and the task whose turn it is."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.current: Task | None = None
        self.trace = 0
        self.num_calls = 0
        self.log: list[str] | None = None
        self.num_faults = 0
        self._hub = getcurrent()
        self._due: list[tuple[float, int, Any, int]] = []
        self._count = 0
        self._doomed: list[Process] = []

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, call: Callable[[], Any]) -> Task:
        task = Task(process, name, call, self._hub)
        self._wake(task, self.now_s)
        return task

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Does something at a time, outside of every task."""
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, call, -1))

    def block(self, until_s: float | None = None) -> None:
        """Leaves the current task until it is woken, or until a time."""
        task = self.current
        assert task is not None
        task.ticket += 1
        if until_s is not None:
            self._count += 1
            heapq.heappush(self._due, (until_s, self._count, task, task.ticket))
        self._hub.switch()
        if task.process.is_dead:
            raise Killed

    def wake(self, task: Task) -> None:
        self._wake(task, self.now_s)

    def _wake(self, task: Task, time_s: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, task, task.ticket))

    def sleep(self, seconds: float) -> None:
        """The current task does nothing for that long."""
        process, until_s = self.current.process, self.now_s + max(seconds, 0.0)
        if process.is_dead:
            raise Killed
        if process.is_paused or self._doomed or (self._due and self._due[0][0] <= until_s):
            self.block(until_s)
        else:  # the next that is due is this task
            self.now_s = until_s

    def join(self, task: Task, until_s: float | None = None) -> None:
        """Until another task has ended."""
        while not task.is_done and not (until_s is not None and self.now_s >= until_s):
            if self.current.process.is_dead:
                raise Killed
            task.joiners.append(self.current)
            self.block(until_s)

    # ---- processes -------------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Ends a process at once, without a word: its locks, files and threads are gone, its requests are on their way."""
        if not process.is_dead:
            process.is_dead = True
            process.machine.processes.pop(process.pid, None)
            self._doomed.append(process)

    def pause(self, process: Process, seconds: float) -> None:
        if not process.is_paused and not process.is_dead:
            process.is_paused = True
            self.at(self.now_s + seconds, lambda: self.unpause(process))

    def unpause(self, process: Process) -> None:
        if process.is_paused:
            process.is_paused, process.woken_s = False, self.now_s
            held, process.held = process.held, []
            for task, ticket in held:
                if task.ticket == ticket:
                    self._wake(task, self.now_s)

    # ---- the hub ---------------------------------------------------------------------------------------------------

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Runs what is due, in order, until nothing is left."""
        while self._due and not until():
            time_s, _, item, ticket = heapq.heappop(self._due)
            if time_s > self.now_s:
                self.now_s = time_s
            if ticket < 0:
                item()
            elif not item.is_done and item.ticket == ticket:
                if item.process.is_paused:
                    item.process.held.append((item, ticket))
                    continue
                self._switch(item)
            while self._doomed:
                self._reap(self._doomed.pop(0))

    def _switch(self, task: Task) -> None:
        self.current = task
        task.greenlet.switch()
        self.current = None
        if task.is_done:
            self._ended(task)

    def _reap(self, process: Process) -> None:
        for task in process.tasks:
            if not task.is_done:
                self.current = task
                if task.greenlet:
                    task.greenlet.throw(Killed)
                task.is_done = True
                self.current = None
                self._wake_joiners(task)
        for call in process.on_end:
            call()

    def abandon(self) -> None:
        """Unwind what is left, so that no greenlet outlives its world."""
        for task in {task for _, _, task, ticket in self._due if ticket >= 0}:
            self.kill(task.process)
        while self._doomed:
            process = self._doomed.pop(0)
            process.on_end.clear()
            self._reap(process)

    def _wake_joiners(self, task: Task) -> None:
        joiners, task.joiners = task.joiners, []
        for joiner in joiners:
            self.wake(joiner)

    def _ended(self, task: Task) -> None:
        self._wake_joiners(task)
        process = task.process
        if isinstance(task.error, Failure):
            raise task.error
        if task is process.tasks[0] and not process.is_dead:  # the main thread: daemons end with it
            process.error = task.error
            self.kill(process)
        elif task.error is not None and not process.is_dead:
            self.thread_died(task)

    def thread_died(self, task: Task) -> None:
        raise Failure(f"a thread died: {task.name} of {task.process.role}: {task.error!r}") from task.error
